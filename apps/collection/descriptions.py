"""Descriptions of folders and files, written by the user: a sentence each, returned with every hit below the path."""

from __future__ import annotations

from collections.abc import Mapping

from edge.apps.collection.scopes import ancestors
from edge.apps.collection.storable import checked
from edge.connection import Connection
from edge.errors import InputError

LONGEST = 2_000
"""The most characters of a description."""

_BETWEEN = "\n"


def read_descriptions(db: Connection) -> dict[str, str]:
    """All descriptions, by path."""
    return dict(db.execute("SELECT path, text FROM descriptions ORDER BY path"))


def description_of(path: str, described: Mapping[str, str]) -> str:
    """The descriptions of a path and of the folders above it, outermost first, a line each."""
    if not described:
        return ""
    places = [path, *ancestors(path)]
    return _BETWEEN.join(described[place] for place in reversed(places) if place in described)


def describe(db: Connection, path: str, text: str) -> None:
    """Sets the description of a path; an empty text removes it.

    Raises:
        InputError: the text is too long, or not valid Unicode.
    """
    text = " ".join(checked(text, "the description").split())
    if len(text) > LONGEST:
        raise InputError(f"a description has at most {LONGEST:,} characters, not {len(text):,}")
    if text:
        db.execute("INSERT OR REPLACE INTO descriptions VALUES (?, ?)", (path, text))
    else:
        db.execute("DELETE FROM descriptions WHERE path = ?", (path,))
