"""A directory that appears whole or not at all: built beside its place, flushed to disk, then renamed into it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

from edge.errors import StorageError

MANIFEST = "edge.json"


class Staging:
    """A temporary sibling of `target`, as a context manager: leaving it without `commit` takes everything back.

    An existing pack at `target` stays until the new one is complete. The swap is two renames; a kill between them
    leaves the old one under its hidden name, from where `recover` takes it back.
    """

    def __init__(self, target: str | Path) -> None:
        """Prepares to write `target`.

        Raises:
            StorageError: `target` is something else than a pack or an empty directory, and would be lost.
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
            self.path.mkdir(parents=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be created: {error.strerror}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        """Puts the directory in its place.

        Raises:
            StorageError: the disk refused; what was at `target` is still there.
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
                os.rename(self.path, self.target)
            except OSError:
                if replaced:
                    os.rename(previous, self.target)
                raise
            _sync(self.target.parent)
            shutil.rmtree(previous, ignore_errors=True)
        except OSError as error:
            raise StorageError(f"{self.target} cannot be put in place: {error.strerror}") from error

    def _remove_abandoned(self) -> None:
        for path in self.target.parent.glob(f".{self.target.name}.packing-*"):
            owner = path.name.rpartition("-")[2]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(path, ignore_errors=True)


def recover(target: Path) -> None:
    """Takes back the pack that a kill in the middle of a swap left under its hidden name."""
    previous = _previous(target)
    if previous.is_dir() and not target.exists():
        os.rename(previous, target)


def _previous(target: Path) -> Path:
    return target.parent / f".{target.name}.previous"


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / MANIFEST).is_file() or not any(target.iterdir()))


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open directories, and keeps their entries in order by itself.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
