"""Moments and days: parsing of callers' values, the stored form, and the form in texts.

Moments are stored in UTC with microseconds, all of the same width, so that comparing strings compares times. The day
and hour of a moment depend on the time zone it was given in, so the moment in that zone is stored, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timezone

from edge.errors import InputError

Clock = Callable[[], datetime]
"""Returns the present moment with its time zone, which also determines the present day. Tests and replays pass a clock
of their own."""

_UTC = "+00:00"
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def local_now() -> datetime:
    """The present moment in the time zone of this machine."""
    return datetime.now().astimezone()


def stamp(moment: datetime) -> str:
    """The stored form of a moment. A moment without a time zone counts as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def parse_moment(value: object, name: str = "timestamp") -> str:
    """The stored form of a datetime, a date (its midnight), seconds since 1970, or ISO 8601 text.

    Raises:
        InputError: the value is none of these. The message names the field, `name`.
    """
    return parse_local(value, name)[0]


def parse_local(value: object, name: str = "timestamp") -> tuple[str, str | None]:
    """The stored form of a moment, and the moment in the time zone it was given in; None if that is UTC or not given.

    Raises:
        InputError: as for `parse_moment`.
    """
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
    """A day as `YYYY-MM-DD`, from a date, a datetime, or text of that form.

    Raises:
        InputError: the value is none of these. The message names the field, `name`.
    """
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
    """The day as `YYYY-MM-DD`, if `value` is a day without a time; otherwise None. A filter that compares with a day
    means the whole day."""
    if isinstance(value, datetime) or not isinstance(value, date | str):
        return None
    try:
        return parse_day(value)
    except InputError:
        return None


def spoken(moment: str) -> str:
    """A stored or local moment in the words of a person, `8 May 2023, 13:56`, which match questions about time."""
    when = datetime.fromisoformat(moment)
    day = f"{when.day} {_MONTHS[when.month - 1]} {when.year}"
    return day if when.time() == time() else f"{day}, {when:%H:%M}"


def written(moment: str) -> str:
    """A stored or local moment to the minute, with its time zone: `2023-05-08T13:56Z`, `2023-05-08T13:56-07:00`."""
    text = datetime.fromisoformat(moment).isoformat(timespec="minutes")
    return f"{text[: -len(_UTC)]}Z" if text.endswith(_UTC) else text


def hours_between(one: str, other: str) -> float:
    """The hours between two stored moments."""
    return abs((datetime.fromisoformat(one) - datetime.fromisoformat(other)).total_seconds()) / 3_600


def age_days(moment: str, now: datetime) -> float:
    """The days from a stored moment to `now`; 0 if the moment lies in the future."""
    return max(0.0, (now - datetime.fromisoformat(moment)).total_seconds() / 86_400)


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return datetime.fromtimestamp(value, timezone.utc)
    return datetime.fromisoformat(_iso(value)) if isinstance(value, str) else None


def _iso(text: str) -> str:
    text = text.strip()
    return f"{text[:-1]}{_UTC}" if text[-1:] in ("Z", "z") else text
