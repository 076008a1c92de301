"""The folder of a collection or memory, and whether its files can be written. A folder holds only one of the two:
maintenance removes segments that the database does not name."""

from __future__ import annotations

import os
from pathlib import Path

from edge.errors import InputError, as_storage_error
from edge.files import named_file

COLLECTION = "edge.db"
MEMORY = "memory.db"

SEGMENTS = "segments"

_WHAT = {COLLECTION: "a collection", MEMORY: "a memory"}


def claim(folder: Path, database: str) -> None:
    # Path.exists raises OSError if a name is too long; such a folder cannot be made, either.
    if not os.path.exists(folder / database):
        for other, what in _WHAT.items():
            if other != database and os.path.exists(folder / other):
                raise InputError(f"{folder} is the folder of {what}; name another one")
    make_folder(folder)


def make_folder(path: Path) -> None:
    with as_storage_error(f"{path} cannot be made"):
        named_file.make_folder(path)


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def can_be_written(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def has_log(path: Path) -> bool:
    try:
        return log_of(path).stat().st_size > 0
    except OSError:
        return False


def is_frozen(path: Path) -> bool:
    """Readers of a log write a shared-memory file beside it, which is impossible in a folder that is not writable."""
    return path.exists() and not can_be_written(path.parent) and not has_log(path)


def reading_uri(path: Path) -> str:
    return path.absolute().as_uri() + ("?mode=ro&immutable=1" if is_frozen(path) else "?mode=ro")


def writing_uri(path: Path) -> str:
    """A path as such would have to be UTF-8."""
    return f"{path.absolute().as_uri()}?mode=rwc"
