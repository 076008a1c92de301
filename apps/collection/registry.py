"""`Registry`: the names of the user's collections, a file among the user's own data that no project can replace.
`locate` finds a collection by its name or its place, `project_collection` the own one of a project."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from edge.apps.collection.paths import resolved
from edge.apps.store.folder import COLLECTION
from edge.errors import CollectionMissing, CorruptBlock, InputError, StorageError
from edge.files.sealed import read_sealed, write_sealed

DEFAULT = "default"
"""The name of the collection that is used where none is named, unless another one has this name."""

PROJECT, PROJECTS = ".edge", "projects"

_REMEDY = "remove it and give your collections their names again with `edge collections add`; nothing else is lost"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Registry:
    def __init__(self) -> None:
        self._folder = platformdirs.user_data_path("edge-rag", appauthor=False)
        self._file = self._folder / "collections.json"

    def names(self) -> dict[str, Path]:
        try:
            stored = read_sealed(self._file)
        except CorruptBlock as error:
            raise StorageError(f"{error}; {_REMEDY}") from None
        found = {} if stored is None else stored.get("names")
        if not isinstance(found, dict) or not all(isinstance(path, str) for path in found.values()):
            raise StorageError(f"{self._file} is damaged: it is no list of names and directories; {_REMEDY}")
        return {name: Path(path) for name, path in sorted(found.items())}

    def add(self, name: str, directory: Path | None = None) -> Path:
        """Gives a collection a name. The directory need not exist; the default is a folder among the user's data."""
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
        """Returns its directory, which stays unchanged."""
        known = self.names()
        if name not in known:
            raise InputError(f"no collection is called {name!a}; {naming(known)}")
        path = known.pop(name)
        self._write(known)
        return path

    def _write(self, names: dict[str, Path]) -> None:
        write_sealed(self._file, {"names": {name: str(path) for name, path in names.items()}})


def naming(names: dict[str, Path]) -> str:
    return f"the names are {', '.join(names)}" if names else "`edge collections add NAME` gives one a name"


def locate(chosen: str | Path | None = None) -> Path:
    """The directory of a collection by a registered name or a directory. Without it, or if `DEFAULT` is none, the
    nearest `.edge` folder from the working directory upward, or else one among the user's data."""
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
    try:
        return (Path(os.path.expanduser(folder)) / COLLECTION).is_file()
    except OSError:  # no folder can have this name
        return False


def existing_collection(folder: Path) -> Path:
    if not holds_collection(folder):
        raise CollectionMissing(f"there is no collection in {folder}; `edge index DIR` makes one")
    return folder


def located(chosen: Sequence[str]) -> dict[str, str]:
    """By the names that they were chosen by; the usual one if none is."""
    return {name: str(locate(name or None)) for name in chosen or ("",)}


def project_root(chosen: object = None) -> str:
    """The nearest folder from the working directory upward that holds `.git`, or else this directory. Raises
    `InputError` if it is gone or holds everything of the user, or if another collection is `chosen`."""
    if chosen:
        raise InputError("--here searches the project that you are in: leave out -c and --cluster")
    try:
        here = Path(resolved(os.getcwd()))
    except FileNotFoundError:
        raise InputError("the folder that you are in is gone") from None
    everything = (Path(here.anchor), Path.home().resolve())  # which may hold `.git`, too, for settings alone
    if here in everything:
        raise InputError(f"{here} is no project: search in a folder below it, or name folders to `edge index`")
    above = (folder for folder in (here, *here.parents) if folder not in everything)
    root = next((folder for folder in above if os.path.lexists(folder / ".git")), here)
    return str(root)


def project_collection(root: str) -> Path:
    """The directory of a project's own collection."""
    from hashlib import blake2b  # only a search of a project waits for it

    digest = blake2b(os.fsencode(root), digest_size=8).hexdigest()
    return projects_folder() / f"{os.path.basename(root)[:40]}-{digest}"


def is_project(collection: Path) -> bool:
    """Whether a directory is a project's own collection."""
    return collection.parent == projects_folder()


def projects_folder() -> Path:
    """The folder of all collections of projects."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / PROJECTS
