"""Moments and days: what callers may pass, how they are stored, and how they read as text.

Moments are stored in UTC with microseconds, all of the same width, so that comparing strings compares times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone

from edge.errors import InputError

Clock = Callable[[], datetime]
"""Returns the present moment with its time zone; injectable, so that tests and replays decide what time it is."""

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def utc_now() -> datetime:
    """The present moment in UTC."""
    return datetime.now(timezone.utc)


def stamp(moment: datetime) -> str:
    """A moment as it is stored; without a time zone it counts as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def parse_moment(value: object, name: str = "timestamp") -> str:
    """A stored moment from a datetime, a date (its midnight), seconds since 1970, or ISO 8601 text.

    Raises:
        InputError: none of these; the message names the field.
    """
    try:
        if isinstance(value, datetime):
            return stamp(value)
        if isinstance(value, date):
            return stamp(datetime.combine(value, time()))
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return stamp(datetime.fromtimestamp(value, timezone.utc))
        if isinstance(value, str):
            return stamp(datetime.fromisoformat(_iso(value)))
    except (ValueError, OverflowError, OSError):
        pass
    raise InputError(
        f"{name} {value!r} is no moment: pass a datetime, seconds since 1970, or text like 2023-05-08T13:56"
    )


def parse_day(value: object, name: str = "expiration_date") -> str:
    """A day as `YYYY-MM-DD` from a date, a datetime, or such text.

    Raises:
        InputError: none of these; the message names the field.
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


def day_bounds(value: object) -> tuple[str, str] | None:
    """First moment of a whole day and of the next, if `value` is a day without a time; else None. A filter that
    compares with a day means all of it."""
    if isinstance(value, datetime):
        return None
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, date):
        return None
    try:
        return parse_moment(value), parse_moment(value + timedelta(days=1))
    except OverflowError:
        return None


def spoken(moment: str) -> str:
    """A stored moment as a person writes it, `8 May 2023, 13:56`: the words a question about time would use."""
    when = datetime.fromisoformat(moment)
    day = f"{when.day} {_MONTHS[when.month - 1]} {when.year}"
    return day if when.time() == time() else f"{day}, {when:%H:%M}"


def age_days(moment: str, now: datetime) -> float:
    """Days from a stored moment to `now`; 0 if it lies ahead."""
    return max(0.0, (now - datetime.fromisoformat(moment)).total_seconds() / 86_400)


def _iso(text: str) -> str:
    text = text.strip()
    return f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text
