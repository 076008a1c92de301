"""What can be written down: text that is valid Unicode.

Python's strings may hold halves of characters, as names of files that are no UTF-8 do; neither SQLite nor a tokenizer
takes them.
"""

from __future__ import annotations

import os
from pathlib import Path

from edge.apps.documents.base import printable
from edge.errors import InputError


def storable(text: str) -> bool:
    """Whether a text can be written down."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked(text: str, what: str) -> str:
    """`text` itself; `what` names it for people.

    Raises:
        InputError: it cannot be written down.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place, half = error.start + 1, text[error.start]
        raise InputError(f"{what} is not valid Unicode: character {place} is half of one ({half!a})") from None
    return text


def written(path: Path) -> str:
    """A path as the collection writes it, another one for every path: as it is where that can be written down. Else
    each name that cannot stands behind a `.`, which no path without symlinks has as a name, its bytes that are no UTF-8
    as `\\xNN`, and its backslashes doubled."""
    text = str(path)
    if storable(text):
        return text
    names = (name if storable(name) else os.path.join(os.curdir, _escaped(name)) for name in path.parts)
    return os.path.join(*names)


def _escaped(name: str) -> str:
    return printable(name.replace("\\", "\\\\"))
