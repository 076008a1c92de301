"""The folder of a collection or memory. A folder holds only one of the two: maintenance removes segments that the
database does not name."""

from __future__ import annotations

from pathlib import Path

from edge.errors import InputError, StorageError
from edge.files import own_folder

COLLECTION = "edge.db"
MEMORY = "memory.db"
"""File names of the databases."""

_WHAT = {COLLECTION: "a collection", MEMORY: "a memory"}


def claim(folder: Path, database: str) -> None:
    """Makes the folder of a store if it is missing.

    Raises:
        InputError: the folder holds a store of the other kind and none of this kind.
        StorageError: the folder cannot be made.
    """
    if not (folder / database).exists():
        for other, what in _WHAT.items():
            if other != database and (folder / other).exists():
                raise InputError(f"{folder} is the folder of {what}; name another one")
    make_folder(folder)


def make_folder(path: Path) -> None:
    """Makes the folder of a database if it is missing.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        own_folder.make_folder(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be made: {error.strerror}") from error
