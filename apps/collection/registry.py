"""`Registry`: the names of this user's collections.

It is a file of the user's own data. A project cannot bring one, so a name never leads where a stranger wants.
"""

from __future__ import annotations

import re
from pathlib import Path

import platformdirs

from edge.errors import CorruptBlock, InputError, StorageError
from edge.sealed import read_sealed, write_sealed

_REMEDY = "remove it and give your collections their names again with `edge collections add`; nothing else is lost"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Registry:
    """Names and the directories of the collections they stand for, kept in one JSON file."""

    def __init__(self, file: Path | None = None) -> None:
        """`file` is the platform's place for user data if not given."""
        self._folder = platformdirs.user_data_path("edge-rag", appauthor=False)
        self._file = file or self._folder / "collections.json"

    def names(self) -> dict[str, Path]:
        """All names with their directories, in the order of the names.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            stored = read_sealed(self._file)
        except CorruptBlock as error:
            raise StorageError(f"{error}; {_REMEDY}") from None
        found = {} if stored is None else stored.get("names")
        if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
            raise StorageError(f"{self._file} is damaged: it is no list of names and directories; {_REMEDY}")
        return {name: Path(path) for name, path in sorted(found.items())}

    def add(self, name: str, directory: Path | None = None) -> Path:
        """Gives a collection a name; returns its directory.

        Args:
            directory: of the collection, which need not exist yet; a place among the user's data if not given.

        Raises:
            InputError: the name is none, or taken.
            StorageError: the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!a} is no name for a collection: up to 64 letters, digits, - and _ make one")
        known = self.names()
        path = (directory or self._folder / "collections" / name).expanduser().absolute()
        if known.get(name, path) != path:
            raise InputError(
                f"{name} is the collection in {known[name]} already; `edge collections remove` frees the name"
            )
        self._write({**known, name: path})
        return path

    def remove(self, name: str) -> Path:
        """Forgets a name and returns its directory, of which nothing is removed.

        Raises:
            InputError: there is no such name.
            StorageError: the file cannot be written.
        """
        known = self.names()
        if name not in known:
            raise InputError(f"no collection is called {name!a}; {_listed(known)}")
        path = known.pop(name)
        self._write(known)
        return path

    def _write(self, names: dict[str, Path]) -> None:
        write_sealed(self._file, {"names": {name: str(path) for name, path in names.items()}})


def _listed(names: dict[str, Path]) -> str:
    return f"the names are {', '.join(names)}" if names else "`edge collections add NAME` gives one a name"
