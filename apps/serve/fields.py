"""Fields of a request's JSON object, each of the type that it must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.apps.serve.refusals import Refusal


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

    def number(self, name: str, default: float | None = None) -> float:
        """A number. Raises as `text` does."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        return float(value)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`. Raises as `text` does."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
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

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise Refusal(422, f"the field `{name}` is missing")
        return value

    def _wrong(self, name: str, wanted: str) -> Refusal:
        return Refusal(422, f"the field `{name}` is {wanted}, not {str(self._values.get(name))[:60]!r}")
