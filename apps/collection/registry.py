"""`Registry`: the names of the user's collections. `locate` finds a collection by its name or its place.

The registry is a file among the user's own data. A project cannot replace it, so no stranger decides where a name
leads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from edge.apps.store.folder import COLLECTION
from edge.errors import CollectionMissing, CorruptBlock, InputError, StorageError
from edge.files.sealed import read_sealed, write_sealed

DEFAULT = "default"
"""The name of the collection that is used where none is named, unless another one has this name."""

PROJECT = ".edge"
"""The folder with a project's settings and collection."""

_REMEDY = "remove it and give your collections their names again with `edge collections add`; nothing else is lost"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Registry:
    """Maps names to the directories of collections, in one JSON file."""

    def __init__(self, file: Path | None = None) -> None:
        """`file` defaults to one in the platform's folder for user data."""
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
            directory: of the collection; it need not exist yet. The default is a folder among the user's data.

        Raises:
            InputError: the name is invalid, or used already.
            StorageError: the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!a} is no name for a collection: up to 64 letters, digits, - and _ make one")
        known = self.names()
        path = Path(os.path.expanduser(directory or self._folder / "collections" / name)).absolute()
        if known.get(name, path) != path:
            raise InputError(
                f"{name} is the collection in {known[name]} already; `edge collections remove` frees the name"
            )
        alike = next((other for other in known if other != name and other.casefold() == name.casefold()), None)
        if alike is not None:  # some file systems would give both the same folder
            raise InputError(f"{name} differs from the name {alike} in upper and lower case alone; take another")
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is no folder")
        self._write({**known, name: path})
        return path

    def remove(self, name: str) -> Path:
        """Removes a name; returns its directory, which stays unchanged.

        Raises:
            InputError: there is no such name.
            StorageError: the file cannot be written.
        """
        known = self.names()
        if name not in known:
            raise InputError(f"no collection is called {name!a}; {naming(known)}")
        path = known.pop(name)
        self._write(known)
        return path

    def _write(self, names: dict[str, Path]) -> None:
        write_sealed(self._file, {"names": {name: str(path) for name, path in names.items()}})


def naming(names: dict[str, Path]) -> str:
    """The names that a collection may be chosen by, or the command that gives one a name."""
    return f"the names are {', '.join(names)}" if names else "`edge collections add NAME` gives one a name"


def locate(chosen: str | Path | None = None) -> Path:
    """The directory of a collection. `chosen` is a registered name or a directory. Without it, or if it is `DEFAULT`
    and no collection has that name or directory, the nearest `.edge` folder from the working directory upward, or else
    the platform's folder for user data."""
    if chosen:
        if (named := Registry().names().get(str(chosen))) is not None:
            return named
        path = Path(os.path.expanduser(chosen)).absolute()
        if str(chosen) != DEFAULT or holds_collection(path):
            return path
    start = Path.cwd()
    for folder in (start, *start.parents):
        if (folder / PROJECT).is_dir():
            return folder / PROJECT
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "collection"


def holds_collection(folder: Path) -> bool:
    """Whether there is a collection in a directory."""
    try:
        return (Path(os.path.expanduser(folder)) / COLLECTION).is_file()
    except OSError:  # no folder can have this name
        return False


def existing_collection(folder: Path) -> Path:
    """Returns the directory of a collection that exists.

    Raises:
        CollectionMissing: there is no collection in it.
    """
    if not holds_collection(folder):
        raise CollectionMissing(f"there is no collection in {folder}; `edge index DIR` makes one")
    return folder


def located(chosen: Sequence[str]) -> dict[str, str]:
    """The directories of collections by the names that they were chosen by; the usual one if none is chosen. Raises as
    `locate` does."""
    return {name: str(locate(name or None)) for name in chosen or ("",)}
