"""Tests whether text can be stored: it must be valid Unicode.

Python's strings may hold lone surrogates, for example from file names that are not UTF-8. Neither SQLite nor a
tokenizer accepts them.
"""

from __future__ import annotations

import os
from pathlib import Path

from edge.apps.documents.base import printable
from edge.apps.store.lexical import bounded_query
from edge.errors import InputError


def storable(text: str) -> bool:
    """Whether a text can be stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_query(text: str) -> str:
    """Returns the text of a query.

    Raises:
        InputError: it is longer than `LONGEST_QUERY`, or not valid Unicode.
    """
    return checked(bounded_query(text), "the query")


def checked(text: str, what: str) -> str:
    """Returns `text`; `what` names it in the error message.

    Raises:
        InputError: it is not valid Unicode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place, half = error.start + 1, text[error.start]
        raise InputError(f"{what} is not valid Unicode: character {place} is half of one ({half!a})") from None
    return text


def written(path: Path) -> str:
    """The form in which the collection stores a path, different for every path. A path that is valid Unicode is stored
    unchanged. Otherwise each invalid name is preceded by a `.`, which no path without symbolic links contains as a
    name. Its bytes that are not UTF-8 become `\\xNN`, and its backslashes are doubled."""
    text = str(path)
    if storable(text):
        return text
    names = (name if storable(name) else os.path.join(os.curdir, _escaped(name)) for name in path.parts)
    return os.path.join(*names)


def _escaped(name: str) -> str:
    return printable(name.replace("\\", "\\\\"))
