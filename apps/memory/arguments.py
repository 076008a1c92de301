"""What arguments may be: checked once, where they come in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edge.errors import InputError

_TOP_K = 20
_MOST = 10_000
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""In JSON; a backslash of the text itself is written twice there."""


class _Unset:
    def __repr__(self) -> str:
        return "unchanged"


UNSET: Final = _Unset()
"""Stands for "leave it as it is" where None means "take it away"."""


def check_count(*values: int | None) -> int:
    """The first number that is given; 20 if none is.

    Raises:
        InputError: it is no number of memories.
    """
    value = next((value for value in values if value is not None), _TOP_K)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InputError(f"a number of memories is a whole number from 0 to {_MOST:,}, not {value!r}")
    return value


def check_share(value: object, name: str) -> float | None:
    """A number in 0 ... 1, or None.

    Raises:
        InputError: it is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is a number from 0 to 1, not {value!r}")
    return float(value)


def check_metadata(metadata: object) -> dict[str, Any]:
    """The metadata as a dictionary that JSON can hold.

    Raises:
        InputError: it cannot.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InputError(f"metadata is a mapping with text keys, not {type(metadata).__name__}")
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"metadata must be what JSON can hold: {error}") from None
    if _NUL.search(text):  # at which SQLite ends a key or a value, so that filters would find others
        raise InputError("metadata must not hold the character NUL")
    return dict(metadata)


def check_path(value: Any) -> Path:
    """A path that files can have.

    Raises:
        InputError: it is none.
    """
    try:
        path = Path(os.fsdecode(value))
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise InputError(f"{value!r} is no path")


def check_text(value: object, what: str) -> str:
    """A text that is not empty and can be stored.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{what} must be text that is not empty")
    return check_unicode(value, what)


def check_unicode(value: object, what: str) -> str:
    """A text that can be stored; it may be empty.

    Raises:
        InputError: it is no text, or holds half a character, as bytes that are not UTF-8 become on the command line.
    """
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode at character {error.start}") from None
    return value
