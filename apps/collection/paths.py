"""Paths: their stored form, and scopes, in Python and in SQL, which include everything below a path. A stored path must
be valid Unicode. Sets of scopes are searched by the parent folders of a path, so that thousands cost only look-ups. One
root may lie below another, and the nearest root above a file decides about it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from edge.errors import InputError

_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")

Item = str | os.PathLike[str]


def listed(items: Item | Sequence[Item]) -> list[Item]:
    return [items] if isinstance(items, str | os.PathLike) else list(items)


def storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place, half = error.start + 1, text[error.start]
        raise InputError(f"{what} is not valid Unicode: character {place} is half of one ({half!a})") from None
    return text


def absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(_checked_path(os.fspath(path))))


def resolved(path: str | os.PathLike[str]) -> str:
    return _checked_path(os.path.realpath(os.path.expanduser(_checked_path(os.fspath(path)))))


def written(path: Path) -> str:
    """The stored form of a path, different for every path. Names that are no Unicode are preceded by `.` as a name;
    their bytes that are not UTF-8 become `\\xNN`, and backslashes are doubled."""
    text = str(path)
    if storable(text):
        return text
    names = (name if storable(name) else os.path.join(os.curdir, _escaped(name)) for name in path.parts)
    return os.path.join(*names)


def on_disk(stored: str) -> str:
    before, *escaped = stored.split(f"{os.sep}{os.curdir}{os.sep}")
    for text in escaped:
        name, sep, rest = text.partition(os.sep)
        raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]) if found[1] else b"\\", os.fsencode(name))
        before += os.sep + os.fsdecode(raw) + sep + rest
    return before


def check_there(paths: Iterable[str]) -> None:
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{path} does not exist")


def below(path: str) -> tuple[str, tuple[str, str, str]]:
    """The SQL condition that the column `path` equals an absolute path or lies below it, with its parameters."""
    if not os.path.isabs(path):
        raise ValueError(f"nothing lies below {path!r}, which is not absolute")
    stem = path if path.endswith(os.sep) else path + os.sep
    # All paths that begin with the folder's name and a separator are one range of the index on paths.
    return "(path = ? OR path >= ? AND path < ?)", (path, stem, stem[:-1] + chr(ord(os.sep) + 1))


def contains(outer: str, path: str) -> bool:
    return path == outer or path.startswith(outer if outer.endswith(os.sep) else outer + os.sep)


def from_here(path: str) -> str:
    return path_from(os.getcwd(), path)


def path_from(here: str, path: str) -> str:
    return os.path.relpath(path, here) if contains(here, path) and path != here else path


def ancestors(path: str) -> Iterator[str]:
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def nearest(path: str, scopes: Set[str]) -> str | None:
    if path in scopes:
        return path
    return next((folder for folder in ancestors(path) if folder in scopes), None)


def outermost(paths: Iterable[str]) -> list[str]:
    chosen: set[str] = set()
    for path in sorted(set(paths), key=lambda path: path.count(os.sep)):
        if chosen.isdisjoint(ancestors(path)):
            chosen.add(path)
    return sorted(chosen)


def on_the_way(root: str, paths: Iterable[str]) -> Mapping[str, Set[str]]:
    """Maps each folder from `root` down to `paths`, none of which lies below another, to the names that lead to
    them."""
    names: dict[str, set[str]] = {}
    for path in paths:
        for folder in ancestors(path):
            if not contains(root, folder):
                break
            found = names.setdefault(folder, set())
            name = os.path.basename(path)
            if name in found:
                break  # the folders above have it as well
            found.add(name)
            path = folder
    return names


def with_nested(given: Iterable[str], roots: Iterable[str]) -> list[str]:
    chosen = frozenset(given)
    return sorted(chosen.union(root for root in roots if nearest(root, chosen) is not None))


def absence(root: str, holds: Callable[[str], bool]) -> str | None:
    """Why a root's files cannot be seen now; None if they can be. If the collection `holds` files below an empty
    folder, it counts as the mount point of an absent disk. A scan follows no link."""
    try:
        status = os.stat(root)
        if (real := os.path.realpath(root)) != root:
            return f"is a link to {real} now"
        if not stat.S_ISDIR(status.st_mode):
            return None
        with os.scandir(root) as entries:
            empty = next(entries, None) is None
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError:  # it holds a NUL, which only another program can have stored
        return "is no path"
    return "is empty now" if empty and holds(root) else None


def _checked_path(path: str) -> str:
    if not path:  # the system would take it for the working directory
        raise InputError("a path is empty; name a file or a folder, `.` for the one you are in")
    if "\0" in path:
        raise InputError(f"{path!a} is no path: it holds a NUL")
    return checked(path, f"the path {path!a}")


def _escaped(name: str) -> str:
    from edge.apps.documents.base import printable  # a search that the server answers needs nothing of documents

    return printable(name.replace("\\", "\\\\"))
