"""Arguments: the checks that are made where a value enters the library; `Scope`, moments and days. Moments are stored
in UTC with microseconds, all of one width, so that comparing strings compares times; the moment in the zone that it was
given in is stored, too."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import platformdirs

from edge.apps.store.folder import MEMORY
from edge.errors import InputError
from edge.text.languages import MONTHS

_MOST_DEPTH = 100
"""The most levels of a JSON value. Python bounds its levels and the open calls together, so a deeper value might not be
read again."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of NUL in JSON text. A backslash of the text itself is written twice there."""


def default_path() -> Path:
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "memory"


def existing_memory(path: Path | None) -> Path:
    place = path or default_path()
    if not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    return place


def holds_memory(path: Path) -> bool:
    return (path / MEMORY).is_file()


def check_share(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is a number from 0 to 1, not {value!r}")
    return float(value)


def check_metadata(metadata: object) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a mapping with text keys, not {type(metadata).__name__}")
    for key in metadata:
        if not isinstance(key, str):
            raise InputError(f"metadata is a mapping with text keys, not with {type(key).__name__} keys")
    # SQLite would end a key or value at NUL, and filters would match other memories.
    if _NUL.search(_json_text(dict(metadata))):
        raise InputError("metadata must not hold the character NUL")
    return dict(metadata)


def _json_text(metadata: dict[str, Any]) -> str:
    try:
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"metadata must be what JSON can hold: {error}") from None
    level: list[object] = [metadata]
    for _ in range(_MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if any(isinstance(inner, Mapping | list | tuple) for inner in level):
        raise InputError(f"metadata must not be nested deeper than {_MOST_DEPTH} levels")
    return text


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def check_path(value: Any) -> Path:
    try:
        path = Path(os.fsdecode(value))
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise InputError(f"{value!r} is no path")


def check_text(value: object, what: str) -> str:
    """A text that is not empty and can be stored."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{what} must be text that is not empty")
    return check_unicode(value, what)


def check_unicode(value: object, what: str) -> str:
    """A text that can be stored; it may be empty."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode at character {error.start}") from None
    return value


SCOPE_FIELDS = ("user_id", "agent_id", "run_id")


@dataclass(frozen=True, slots=True)
class Scope:
    """The ids of a user, an agent and a run. A stored memory has exactly its three ids; a query matches every memory
    that has all the ids it names."""

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None

    @classmethod
    def of(cls, ids: Mapping[str, Any]) -> Scope:
        """The three ids of a mapping, converted to text and stripped."""
        return cls(**{name: _identifier(name, ids.get(name)) for name in SCOPE_FIELDS})

    def __bool__(self) -> bool:
        return any(value is not None for _, value in self.items())

    def items(self) -> Iterator[tuple[str, str | None]]:
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def within(self, bound: Scope) -> Scope:
        """This scope, narrowed to the scope that a memory is bound to."""
        for (name, own), (_, outer) in zip(self.items(), bound.items(), strict=True):
            if own is not None and outer is not None and own != outer:
                raise InputError(
                    f"this memory was opened for {name} {outer!r}; {own!r} is another scope: open one for it, or one "
                    f"without {name}"
                )
        return Scope(*(own if own is not None else outer for own, outer in zip(self, bound, strict=True)))

    def __iter__(self) -> Iterator[str | None]:
        return (value for _, value in self.items())

    def condition(self, table: str = "memories") -> tuple[str, list[str]]:
        """SQL for the rows that this scope matches, with its parameters."""
        named = [(name, value) for name, value in self.items() if value is not None]
        return " AND ".join(f"{table}.{name} = ?" for name, _ in named) or "1", [value for _, value in named]

    def exactly(self) -> tuple[str, list[str | None]]:
        """SQL for the rows stored under exactly these ids, including missing ones, with its parameters."""
        return " AND ".join(f"memories.{name} IS ?" for name in SCOPE_FIELDS), list(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in self.items() if value is not None) or "no scope"


def _identifier(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name} must be text that is not empty, not {value!r}")
    return check_unicode(value.strip(), name)


Clock = Callable[[], datetime]
"""Returns the present moment with its time zone, which also determines the present day."""

_UTC = "+00:00"


def local_now() -> datetime:
    try:
        return datetime.now().astimezone()
    except ValueError:  # its zone is more than a day away
        return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """The stored form of a moment. A moment without a time zone counts as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def parse_moment(value: object, name: str = "timestamp") -> str:
    """The stored form of a datetime, a date (its midnight), seconds since 1970, or ISO 8601 text."""
    return parse_local(value, name)[0]


def parse_local(value: object, name: str = "timestamp") -> tuple[str, str | None]:
    """The stored form of a moment, and the moment in the time zone it was given in; None if that is UTC or unknown."""
    try:
        moment = _moment(value)
        if moment is not None:
            return stamp(moment), moment.isoformat(timespec="microseconds") if moment.utcoffset() else None
    except (ValueError, OverflowError, OSError):
        pass
    raise InputError(
        f"{name} {value!r} is no moment: pass a datetime, seconds since 1970, or text like 2023-05-08T13:56"
    )


def parse_day(value: object, name: str = "expiration_date") -> str:
    if isinstance(value, datetime):
        return value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value.strip()).isoformat()
        except ValueError:
            pass
    raise InputError(f"{name} {value!r} is no day: pass a date or text like 2026-12-31")


def whole_day(value: object) -> str | None:
    """The day as `YYYY-MM-DD`, if `value` is a day without a time; otherwise None."""
    if isinstance(value, datetime) or not isinstance(value, date | str):
        return None
    try:
        return parse_day(value)
    except InputError:
        return None


def spoken(moment: str) -> str:
    """A stored or local moment in the words of a person, `8 May 2023, 13:56`, which match questions about time."""
    when = datetime.fromisoformat(moment)
    day = f"{when.day} {MONTHS[when.month - 1]} {when.year}"
    return day if when.time() == time() else f"{day}, {when:%H:%M}"


def written(moment: str) -> str:
    """A stored or local moment to the minute, with its time zone: `2023-05-08T13:56Z`, `2023-05-08T13:56-07:00`."""
    text = datetime.fromisoformat(moment).isoformat(timespec="minutes")
    return f"{text[: -len(_UTC)]}Z" if text.endswith(_UTC) else text


def age_days(moment: str, now: datetime) -> float:
    """The days from a stored moment to `now`, not below 0."""
    return max(0.0, (now - datetime.fromisoformat(moment)).total_seconds() / 86_400)


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return datetime.fromtimestamp(value, UTC)
    return datetime.fromisoformat(_iso(value)) if isinstance(value, str) else None


def _iso(text: str) -> str:
    text = text.strip()
    return f"{text[:-1]}{_UTC}" if text[-1:] in ("Z", "z") else text
