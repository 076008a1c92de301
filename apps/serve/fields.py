"""Fields of a request's JSON object, each of the type that it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edge.apps.serve.refusals import Refusal

_MOST_WHOLE = 2**63 - 1
"""Databases and arrays hold no larger whole number."""

_KINDS = {list: "a list", dict: "an object", bool: "true or false", type(None): "null"}


def said(value: Any) -> str:
    """A value of a request as a refusal repeats it: the beginning of a text or number, the kind of anything else."""
    if isinstance(value, str):
        return repr(value[:60])
    return _KINDS.get(type(value)) or str(value)[:60]


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

    def texts(self, name: str, default: list[str] | None = None) -> list[str]:
        """Texts; one alone counts as a list of one. Raises as `text` does."""
        value = self._value(name, default)
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._wrong(name, "a text or a list of texts")
        return found

    def path(self, name: str, default: str | None = None) -> str:
        """A text that can be a path: it holds no NUL. Raises as `text` does."""
        return self._paths(name, [self.text(name, default)])[0]

    def paths(self, name: str, default: list[str] | None = None) -> list[str]:
        """Texts that can be paths; one alone counts as a list of one. Raises as `text` does."""
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

    def list_of(self, name: str) -> list[Any]:
        """A list of anything. Raises as `text` does."""
        value = self._value(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

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
