"""The roots of a collection: folders and files that were given to index, and are kept up to date from then on.

One root may lie below another, because what a folder leaves out can be asked for by name: the nearest root has the say
about a file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator

from edge.apps.collection.catalog import below
from edge.errors import InputError


def absolute(path: str | os.PathLike[str]) -> str:
    """A path from the file system's root, `~` expanded, symlinks as they are named."""
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


def resolved(path: str | os.PathLike[str]) -> str:
    """A path as the collection writes it: absolute, and without symlinks."""
    return os.path.realpath(os.path.expanduser(os.fspath(path)))


def read_roots(db: sqlite3.Connection) -> list[str]:
    """All roots, in the order of their names."""
    return [row[0] for row in db.execute("SELECT path FROM roots ORDER BY path")]


def register_roots(db: sqlite3.Connection, given: Iterable[str]) -> None:
    """Adds roots, which must exist.

    Raises:
        InputError: one does not.
    """
    for root in given:
        if not os.path.exists(root):
            raise InputError(f"{root} does not exist")
        db.execute("INSERT OR IGNORE INTO roots VALUES (?)", (root,))


def forget_roots(db: sqlite3.Connection, paths: list[str]) -> None:
    """Removes roots that are among `paths` or lie below one."""
    condition, params = below(paths)
    db.execute(f"DELETE FROM roots WHERE {condition}", params)


def with_nested(given: Iterable[str], roots: Iterable[str]) -> list[str]:
    """`given` and the roots below them, outermost first."""
    chosen = set(given)
    return sorted(chosen.union(root for root in roots if any(contains(outer, root) for outer in chosen)))


def root_of(path: str, roots: Iterable[str]) -> str | None:
    """The nearest of `roots` that holds a path; None if none does."""
    holding = [root for root in roots if contains(root, path)]
    return max(holding, key=len, default=None)


def contains(outer: str, path: str) -> bool:
    """Whether a path is `outer` or lies below it."""
    return path == outer or path.startswith(outer if outer.endswith(os.sep) else outer + os.sep)


def outermost(paths: Iterable[str]) -> list[str]:
    """`paths` without those that lie below another one."""
    chosen: set[str] = set()
    for path in sorted(set(paths), key=lambda path: path.count(os.sep)):
        if chosen.isdisjoint(ancestors(path)):
            chosen.add(path)
    return sorted(chosen)


def ancestors(path: str) -> Iterator[str]:
    """A path's folders, from the nearest up to the file system's root."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder
