"""Scopes: a path as a scope includes itself and everything below it, in Python and in SQL.

Sets of scopes are searched by the parent folders of a path, and an SQL statement tests one scope at a time. So
thousands of scopes cost only as many look-ups; one statement could not hold that many conditions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set


def below(path: str) -> tuple[str, tuple[str, str, str]]:
    """The SQL condition that the column `path` equals an absolute path or lies below it, with its parameters.

    Raises:
        ValueError: the path is not absolute. Everything would lie below an empty path.
    """
    if not os.path.isabs(path):
        raise ValueError(f"nothing lies below {path!r}, which is not absolute")
    stem = path if path.endswith(os.sep) else path + os.sep
    # All paths that begin with the folder's name and a separator are one range of the index on paths.
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
    """The innermost of `scopes` that contains a path; None if none does."""
    if path in scopes:
        return path
    return next((folder for folder in ancestors(path) if folder in scopes), None)


def outermost(paths: Iterable[str]) -> list[str]:
    """`paths` without those that lie below another of them."""
    chosen: set[str] = set()
    for path in sorted(set(paths), key=lambda path: path.count(os.sep)):
        if chosen.isdisjoint(ancestors(path)):
            chosen.add(path)
    return sorted(chosen)


def on_the_way(root: str, paths: Iterable[str]) -> Mapping[str, Set[str]]:
    """Maps each folder from `root` down to `paths` to the names in it that lead to them. The paths must lie at or below
    `root`, and none below another.

    A scan that takes only these names in these folders reaches the paths. It still applies the ignore rules of all
    folders on the way.
    """
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
