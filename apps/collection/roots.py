"""The user's statements on folders and files: the roots of a collection, and descriptions.

Roots were passed to `index` and are kept up to date from then on. One root may lie below another, because a file that a
folder's rules ignore can still be indexed by name. The nearest root above a file decides about it.

A description is a sentence, which is returned with every hit below its path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping

from edge.apps.collection.paths import ancestors, below, checked, nearest
from edge.errors import InputError
from edge.ivf.storage.connection import Connection

_LONGEST = 2_000
"""The most characters of a description."""


def read_roots(db: Connection) -> list[str]:
    """All roots, in the order of their names."""
    return [row[0] for row in db.execute("SELECT path FROM roots ORDER BY path")]


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


def read_descriptions(db: Connection) -> dict[str, str]:
    """All descriptions, by path."""
    return dict(db.execute("SELECT path, text FROM descriptions ORDER BY path"))


def description_of(path: str, described: Mapping[str, str]) -> str:
    """The descriptions of a path and of the folders above it, outermost first, a line each."""
    if not described:
        return ""
    places = [path, *ancestors(path)]
    return "\n".join(described[place] for place in reversed(places) if place in described)


def describe(db: Connection, path: str, text: str) -> None:
    """Sets the description of a path; an empty text removes it.

    Raises:
        InputError: the text is too long, or not valid Unicode.
    """
    text = " ".join(checked(text, "the description").split())
    if len(text) > _LONGEST:
        raise InputError(f"a description has at most {_LONGEST:,} characters, not {len(text):,}")
    if text:
        db.execute("INSERT OR REPLACE INTO descriptions VALUES (?, ?)", (path, text))
    else:
        db.execute("DELETE FROM descriptions WHERE path = ?", (path,))
