"""The roots of a collection: folders and files that were passed to `index` and are kept up to date from then on.

One root may lie below another, because a file that a folder's rules ignore can still be indexed by name. The nearest
root above a file decides about it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from edge.apps.collection.scopes import below, nearest
from edge.apps.collection.storable import checked
from edge.connection import Connection
from edge.errors import InputError


def absolute(path: str | os.PathLike[str]) -> str:
    """An absolute path, with `~` expanded and symbolic links kept.

    Raises:
        InputError: the path is empty, or not valid Unicode.
    """
    return os.path.abspath(os.path.expanduser(_checked(os.fspath(path))))


def resolved(path: str | os.PathLike[str]) -> str:
    """A path as the collection stores it: absolute, and without symbolic links.

    Raises:
        InputError: the path is empty, or not valid Unicode.
    """
    return _checked(os.path.realpath(os.path.expanduser(_checked(os.fspath(path)))))


def read_roots(db: Connection) -> list[str]:
    """All roots, in the order of their names."""
    return [row[0] for row in db.execute("SELECT path FROM roots ORDER BY path")]


def check_there(paths: Iterable[str]) -> None:
    """Refuses paths that do not exist.

    Raises:
        InputError: a path does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{path} does not exist")


def register_roots(db: Connection, given: Iterable[str]) -> list[str]:
    """Adds roots; returns the new ones."""
    return [
        root
        for root in given
        if db.execute("INSERT OR IGNORE INTO roots VALUES (?) RETURNING path", (root,)).fetchall()
    ]


def forget_roots(db: Connection, paths: Iterable[str]) -> None:
    """Removes roots that are among `paths` or lie below one of them."""
    for path in paths:
        condition, params = below(path)
        db.execute(f"DELETE FROM roots WHERE {condition}", params)


def with_nested(given: Iterable[str], roots: Iterable[str]) -> list[str]:
    """`given` and all roots below them, outermost first."""
    chosen = frozenset(given)
    return sorted(chosen.union(root for root in roots if nearest(root, chosen) is not None))


def absence(root: str, holds: Callable[[str], bool]) -> str | None:
    """Why a root's files cannot be seen now, for example because its disk is not connected; None if they can be.

    Args:
        holds: whether the collection has files below a root. If so, an empty folder counts as the mount point of an
            absent disk.
    """
    try:
        if not stat.S_ISDIR(os.stat(root).st_mode):
            return None
        with os.scandir(root) as entries:
            empty = next(entries, None) is None
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "is empty now" if empty and holds(root) else None


def _checked(path: str) -> str:
    if not path:  # the system would take it for the working directory
        raise InputError("a path is empty; name a file or a folder, `.` for the one you are in")
    return checked(path, f"the path {path!a}")
