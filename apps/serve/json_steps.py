"""Reads and writes JSON in short steps, so that other threads run meanwhile; answers with JSON.

Python's own functions work through a whole text in C and hold the interpreter's lock until its end. In another thread,
too, they would keep the event loop from serving anyone else.
"""

from __future__ import annotations

import json
import math
import re
from json import scanner
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")
"""One half of a pair of surrogates without the other: no text in UTF-8 holds it."""

_HALF_ESCAPED = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""How a text of JSON in UTF-8 brings such a half, or a whole pair."""

LARGE = 128 << 10
"""From this length in bytes on, a JSON text is read and written in steps. The shorter ones take a few milliseconds."""

_LARGE_VALUES = 4096
"""From this number of values on, a value is large, too."""


class _Reader(json.JSONDecoder):
    """Python's decoder with its scanner in Python. Each text and each number is still read in C, one at a time."""

    def __init__(self) -> None:
        super().__init__(parse_float=_finite, parse_constant=_no_number)
        in_python: Any = scanner
        self.scan_once = in_python.py_make_scanner(self)


def read(text: str) -> Any:
    """The value of a JSON text, as `json.loads` returns it.

    Raises:
        ValueError: it is not valid JSON, or holds what no answer could: numbers that are not finite, halves of
            characters.
        RecursionError: it is nested too deeply.
    """
    return _whole(_Reader().decode(text), text)


def read_at_once(text: str) -> Any:
    """As `read`, in one step: for texts below `LARGE`."""
    return _whole(json.loads(text, parse_float=_finite, parse_constant=_no_number), text)


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"the number {text[:20]} is too large")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _whole(value: Any, text: str) -> Any:
    """The value of a text, if all characters in it are whole."""
    waiting = [value] if _HALF_ESCAPED.search(text) else []
    while waiting:
        each = waiting.pop()
        if isinstance(each, str) and _HALF.search(each):
            raise ValueError("a text holds half of a character (a surrogate without the other)")
        if isinstance(each, dict):
            waiting.extend(each)
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return value


def write(value: Any) -> bytes:
    """A value as JSON in UTF-8, without spaces.

    Raises:
        ValueError: a number is infinite or none.
    """
    found = bytearray()
    for part in json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).iterencode(value):
        found += part.encode()
    return bytes(found)


def is_large(value: Any) -> bool:
    """Whether the JSON of a value may be long. Looks at a few thousand of its parts at most."""
    waiting, values, characters = [value], 0, 0
    while waiting:
        each = waiting.pop()
        values += 1
        if isinstance(each, str):
            characters += len(each)
        elif isinstance(each, dict):
            characters += sum(map(len, each))
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            if len(each) > _LARGE_VALUES:
                return True
            waiting.extend(each)
        if values + len(waiting) > _LARGE_VALUES or characters > LARGE // 4:
            return True
    return False


def json_response(content: Any, status: int = 200, headers: Any = None) -> Any:
    """An answer with this content as JSON."""
    from starlette.responses import JSONResponse

    return JSONResponse(content, status, headers={"Cache-Control": "no-store", **(headers or {})})
