"""Arguments: the defaults, and the checks that are made once, where a value enters the library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import platformdirs

from edge.apps.store.folder import MEMORY
from edge.errors import InputError

_TOP_K = 20
_MOST = 10_000
_MOST_DEPTH = 100
"""The most levels of a JSON value. Python bounds its levels and the open calls together, so that one caller could store
a deeper value that another could not read."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of the character NUL in JSON text. A backslash of the text itself is written twice there."""


class _Unset:
    def __repr__(self) -> str:
        return "unchanged"


UNSET: Final = _Unset()
"""The default of arguments for which None means "remove the value": leave the value unchanged."""


def default_path() -> Path:
    """The default folder of a memory: the platform's folder for the user's data."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "memory"


def existing_memory(path: Path | None) -> Path:
    """The folder of a memory that exists; by default the default folder.

    Raises:
        InputError: there is no memory in it.
    """
    place = path or default_path()
    if not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    return place


def holds_memory(path: Path) -> bool:
    """Whether a directory holds a memory."""
    return (path / MEMORY).is_file()


def check_count(*values: int | None) -> int:
    """The first value that is not None; 20 if all are.

    Raises:
        InputError: the value is not a whole number in the allowed range.
    """
    value = next((value for value in values if value is not None), _TOP_K)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InputError(f"a number of memories is a whole number from 0 to {_MOST:,}, not {value!r}")
    return value


def check_share(value: object, name: str) -> float | None:
    """A number in 0 ... 1, or None.

    Raises:
        InputError: the value is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is a number from 0 to 1, not {value!r}")
    return float(value)


def check_metadata(metadata: object) -> dict[str, Any]:
    """The metadata as a dictionary that can be stored as JSON.

    Raises:
        InputError: it is not a mapping with text keys, `json_text` refuses it, or it contains the character NUL.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a mapping with text keys, not {type(metadata).__name__}")
    for key in metadata:
        if not isinstance(key, str):
            raise InputError(f"metadata is a mapping with text keys, not with {type(key).__name__} keys")
    if _NUL.search(
        json_text(dict(metadata), "metadata")
    ):  # SQLite would end a key or value at NUL, and filters would match other memories
        raise InputError("metadata must not hold the character NUL")
    return dict(metadata)


def json_text(value: object, what: str) -> str:
    """A value as JSON.

    Raises:
        InputError: JSON cannot hold the value, or it is nested too deep.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must be what JSON can hold: {error}") from None
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if any(isinstance(inner, Mapping | list | tuple) for inner in level):
        raise InputError(f"{what} must not be nested deeper than {_MOST_DEPTH} levels")
    return text


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def check_path(value: Any) -> Path:
    """The value as a path.

    Raises:
        InputError: it cannot be the path of a file.
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
        InputError: the value is no such text.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{what} must be text that is not empty")
    return check_unicode(value, what)


def check_unicode(value: object, what: str) -> str:
    """A text that can be stored; it may be empty.

    Raises:
        InputError: the value is not text, or contains a lone surrogate. Python decodes invalid UTF-8 bytes of a command
            line to such characters.
    """
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode at character {error.start}") from None
    return value
