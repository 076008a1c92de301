"""What can be written down: text that is valid Unicode.

Python's strings may hold halves of characters, as names of files that are no UTF-8 do; neither SQLite nor a tokenizer
takes them.
"""

from __future__ import annotations

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
