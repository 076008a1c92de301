"""A directory that appears whole or not at all: it is built beside its target, flushed to disk, and then renamed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

import psutil

from edge.errors import StorageError
from edge.files.own_folder import make_folder

MANIFEST = "edge.json"
_PREVIOUS = ".previous"
_READERS = 5
"""The number of times that readers may restore the old pack during one swap before the swap fails."""


class Staging:
    """A temporary sibling directory of `target`, as a context manager. On exit without `commit` it is removed.

    An existing pack at `target` stays until the new one is complete. The swap is two renames. If the process is killed
    between them, the old pack is left under a hidden name, and `recover` renames it back. Every reader calls `is_pack`
    or `recover` before it reads `target`.
    """

    def __init__(self, target: str | Path) -> None:
        """Prepares to write `target`.

        Raises:
            StorageError: `target` exists and is neither a pack nor an empty directory, so it is not overwritten.
        """
        self.target = Path(os.path.abspath(target))
        if self.target.exists() and not _replaceable(self.target):
            raise StorageError(f"{self.target} exists and is not a packed model; it is not overwritten")
        self.path = self.target.parent / f".{self.target.name}.packing-{os.getpid()}"

    def __enter__(self) -> Staging:
        try:
            recover(self.target)
            self._remove_abandoned()
            shutil.rmtree(self.path, ignore_errors=True)
            make_folder(self.path.parent)
            self.path.mkdir()
        except OSError as error:
            raise StorageError(f"{self.path} cannot be created: {error.strerror}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        """Renames the directory to `target`.

        Raises:
            StorageError: the disk refused; the old pack at `target` is still there.
        """
        previous = _previous(self.target)
        try:
            for file in self.path.iterdir():
                _sync(file)
            _sync(self.path)
            replaced = self.target.exists()
            if replaced:
                shutil.rmtree(previous, ignore_errors=True)
                os.rename(self.target, previous)
            try:
                self._appear(previous)
            except OSError:
                if replaced:
                    recover(self.target)
                raise
            _sync(self.target.parent)
            shutil.rmtree(previous, ignore_errors=True)
        except OSError as error:
            raise StorageError(f"{self.target} cannot be put in place: {error.strerror}") from error

    def _appear(self, previous: Path) -> None:
        """Renames the new directory to `target`. If a reader has restored the old pack between the two renames, the old
        pack is moved aside again."""
        for _ in range(_READERS):
            with suppress(OSError):
                os.rename(self.path, self.target)
                return
            if previous.exists() or not _replaceable(self.target):
                break
            os.rename(self.target, previous)
        os.rename(self.path, self.target)

    def _remove_abandoned(self) -> None:
        for path in self.target.parent.glob(f".{escape(self.target.name)}.packing-*"):
            owner = path.name.rpartition("-")[2]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(path, ignore_errors=True)


def recover(target: Path) -> None:
    """Renames a pack back to `target` if a process was killed in the middle of a swap.

    Raises:
        StorageError: the pack is there, but cannot be renamed.
    """
    previous = _previous(target)
    if os.path.isdir(previous) and not os.path.exists(target):  # Path's methods raise OSError if a name is too long
        try:
            os.rename(previous, target)
        except OSError as error:
            if target.exists():
                return  # another process has renamed it
            raise StorageError(
                f"replacing {target} was interrupted, and {previous} cannot be renamed back to it: {error.strerror}"
            ) from error


def recover_all(folder: Path) -> None:
    """Calls `recover` for every pack in a folder whose replacement was interrupted.

    Raises:
        StorageError: as `recover`.
    """
    for previous in sorted(folder.glob(f".*{_PREVIOUS}")):
        recover(folder / previous.name[1 : -len(_PREVIOUS)])


def is_pack(target: Path) -> bool:
    """Whether there is a packed model at a path. An interrupted replacement is first undone with `recover`.

    Raises:
        StorageError: as `recover`.
    """
    recover(target)
    return os.path.isfile(target / MANIFEST)


def _previous(target: Path) -> Path:
    return target.parent / f".{target.name}{_PREVIOUS}"


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / MANIFEST).is_file() or not any(target.iterdir()))


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open directories, and orders the changes to their entries itself.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
