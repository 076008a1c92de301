"""JSON of requests and answers: read and written in short steps, and fields of an object, each of the type that it must
have.

Python's own functions work through a whole text in C and hold the interpreter's lock until its end. In another thread,
too, they would keep the event loop from serving anyone else. In short steps, other threads run meanwhile.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from json import scanner
from typing import Any

from edge.apps.serve.refusals import Refusal

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


_MOST_WHOLE = 2**63 - 1
"""Databases and arrays hold no larger whole number."""

_KINDS = {list: "a list", dict: "an object", bool: "true or false", type(None): "null"}


def said(value: Any) -> str:
    """A value of a request as a refusal repeats it: the beginning of a text or number, the kind of anything else."""
    if isinstance(value, str):
        return repr(value[:60])
    return _KINDS.get(type(value)) or str(value)[:60]


MOST_ENTRIES = 10_000
"""Entries of a list in a request, unless its field takes fewer or more."""


class Fields:
    """Reads an object's fields. Every error names the field and what it may be."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: object) -> bool:
        return self._values.get(str(name)) is not None

    def raw(self, name: str) -> Any:
        """The value as it came; None where there is none."""
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A text.

        Raises:
            Refusal: it is missing and there is no default, or it is none.
        """
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def texts(self, name: str, default: list[str] | None = None, *, most: int = MOST_ENTRIES) -> list[str]:
        """Texts; one alone counts as a list of one. Raises as `list_of` does."""
        value = self._value(name, default)
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(each, str) for each in self._bounded(name, found, most)):
            raise self._wrong(name, "a text or a list of texts")
        return found

    def path(self, name: str, default: str | None = None) -> str:
        """A text that can be a path: it holds no NUL. Raises as `text` does."""
        return self._paths(name, [self.text(name, default)])[0]

    def paths(self, name: str, default: list[str] | None = None) -> list[str]:
        """Texts that can be paths; one alone counts as a list of one. Raises as `list_of` does."""
        return self._paths(name, self.texts(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number. Raises as `text` does."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            raise self._wrong(name, "a finite number of 64 bits")
        return found

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from `least` to the largest of 64 bits. Raises as `text` does."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
        if value > _MOST_WHOLE:
            raise self._wrong(name, f"a whole number of at most {_MOST_WHOLE}")
        return value

    def optional_whole(self, name: str) -> int | None:
        """A whole number of at least 1, or None where there is none."""
        return self.whole(name) if name in self else None

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises as `text` does."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def list_of(self, name: str, *, most: int = MOST_ENTRIES) -> list[Any]:
        """A list of anything.

        Args:
            most: entries. The event loop looks at each of them, and serves nobody else meanwhile.

        Raises:
            Refusal: it is missing, or is none, or is too long.
        """
        value = self._value(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return self._bounded(name, value, most)

    def _bounded(self, name: str, found: list[Any], most: int) -> list[Any]:
        if len(found) > most:
            entries = f"{len(found):,} entries, and {most:,} are the most of one request"
            raise Refusal(413, f"the field `{name}` has {entries}")
        return found

    def _paths(self, name: str, found: list[str]) -> list[str]:
        if any("\0" in path for path in found):
            raise Refusal(422, f"the field `{name}` holds a NUL, and no path does")
        return found

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise Refusal(422, f"the field `{name}` is missing")
        return value

    def _wrong(self, name: str, wanted: str) -> Refusal:
        return Refusal(422, f"the field `{name}` is {wanted}, not {said(self._values.get(name))}")
