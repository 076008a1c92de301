"""Paths as scopes: what lies at or below them, for Python and for SQL.

Sets of paths are looked up by the folders of a path, and SQL is asked about one scope at a time, so that thousands of
scopes cost no more than that many look-ups: one statement does not take the conditions of a thousand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Set


def below(path: str) -> tuple[str, tuple[str, str, str]]:
    """The SQL condition that the column `path` is an absolute path or lies below it, with its parameters.

    Raises:
        ValueError: the path is not absolute. Of an empty one, everything would lie below.
    """
    if not os.path.isabs(path):
        raise ValueError(f"nothing lies below {path!r}, which is not absolute")
    stem = path if path.endswith(os.sep) else path + os.sep
    # All paths that begin with the folder's name and a separator, as a range of the index on paths.
    return "(path = ? OR path >= ? AND path < ?)", (path, stem, stem[:-1] + chr(ord(os.sep) + 1))


def contains(outer: str, path: str) -> bool:
    """Whether a path is `outer` or lies below it."""
    return path == outer or path.startswith(outer if outer.endswith(os.sep) else outer + os.sep)


def ancestors(path: str) -> Iterator[str]:
    """A path's folders, from the nearest up to the file system's root."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def nearest(path: str, scopes: Set[str]) -> str | None:
    """The innermost of `scopes` that holds a path; None if none does."""
    if path in scopes:
        return path
    return next((folder for folder in ancestors(path) if folder in scopes), None)


def outermost(paths: Iterable[str]) -> list[str]:
    """`paths` without those that lie below another one."""
    chosen: set[str] = set()
    for path in sorted(set(paths), key=lambda path: path.count(os.sep)):
        if chosen.isdisjoint(ancestors(path)):
            chosen.add(path)
    return sorted(chosen)
