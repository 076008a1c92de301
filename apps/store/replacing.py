"""Putting a new database in the place of an old one, so that a kill at any moment leaves one of the two whole.

The new one is made beside the old one and then renamed to its successor. From then on nobody opens the old one, and
whoever repairs goes on: the old log is removed, which would be read into the new file, and the successor takes its
place.
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path

from edge.errors import StorageError
from edge.ivf.segment_writer import sync_folder

_BESIDE = ("-wal", "-shm", "-mark", "-schema")
"""What SQLite and we keep beside a database."""


def successor(path: Path) -> Path:
    """Where the complete successor of a database waits for its place."""
    return path.with_name(path.name + "-repaired")


def draft(path: Path) -> Path:
    """Where a successor is made."""
    return path.with_name(path.name + "-draft")


def discard_draft(path: Path) -> None:
    """Removes what an interrupted repair has left of a successor that was not complete."""
    for name in ("", *_BESIDE):
        (draft(path).with_name(draft(path).name + name)).unlink(missing_ok=True)


def announce(path: Path) -> None:
    """Makes a draft the successor. It is closed, and its log is empty.

    Raises:
        StorageError: the disk refuses.
    """
    try:
        _sync(draft(path))
        os.replace(draft(path), successor(path))
        discard_draft(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{successor(path)} cannot be made: {error.strerror}") from error


def replace(path: Path) -> bool:
    """Puts the successor of a database in its place, if there is one.

    Raises:
        StorageError: the disk refuses, or, on some systems, a process has the old one open.
    """
    if not successor(path).exists():
        return False
    try:
        for name in _BESIDE:
            path.with_name(path.name + name).unlink(missing_ok=True)
        sync_folder(path.parent)
        os.replace(successor(path), path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be replaced: {error.strerror}") from error
    return True


def put_aside(path: Path) -> Path:
    """Copies a database with its log and mark into a new folder beside it, and returns the copy.

    Raises:
        StorageError: the disk refuses, or has no room.
    """
    folder = aside(path.parent)
    try:
        for name in ("", *_BESIDE):
            source = path.with_name(path.name + name)
            if source.exists() and name != "-shm":
                shutil.copy2(source, folder / source.name)
                _sync(folder / source.name)
        sync_folder(folder)
    except OSError as error:
        raise StorageError(f"{path} cannot be copied to {folder}: {error.strerror}") from error
    return folder / path.name


def aside(parent: Path) -> Path:
    """A new folder for what is damaged.

    Raises:
        StorageError: it cannot be made.
    """
    name = f"damaged-{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(100):
        folder = parent / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror}") from error
        return folder
    raise StorageError(f"{parent} has no room for one more folder of damaged files")


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
