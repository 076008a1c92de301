"""Moments and days: the understood forms, the stored form, and the form in texts."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.memory.arguments import (
    age_days,
    local_now,
    parse_day,
    parse_local,
    parse_moment,
    spoken,
    stamp,
    whole_day,
    written,
)
from edge.errors import InputError

moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones() | st.none())


@given(one=moments, other=moments)
def test_stored_moments_compare_as_the_moments_do(one: datetime, other: datetime) -> None:
    utc = [m.replace(tzinfo=timezone.utc) if m.tzinfo is None else m for m in (one, other)]
    a, b = stamp(one), stamp(other)
    assert (a < b, a == b) == (utc[0] < utc[1], utc[0] == utc[1])
    assert parse_moment(a) == parse_moment(one) == a


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2023-05-08", "2023-05-08T00:00:00.000000+00:00"), ("2023-05-08T13:56", "2023-05-08T13:56:00.000000+00:00"),
        (" 2023-05-08T13:56Z ", "2023-05-08T13:56:00.000000+00:00"), (0, "1970-01-01T00:00:00.000000+00:00"),
        (1.5, "1970-01-01T00:00:01.500000+00:00"), (date(2023, 5, 8), "2023-05-08T00:00:00.000000+00:00"),
        ("2023-05-08T13:56:00-07:00", "2023-05-08T20:56:00.000000+00:00"),
    ],
)  # fmt: skip
def test_moments_that_are_understood(value: object, expected: str) -> None:
    assert parse_moment(value) == expected


@pytest.mark.parametrize(
    "value", ["", "soon", "2023-02-30", None, True, float("nan"), 10**20, [], "0001-01-01T00:00+14:00"]
)
def test_moments_that_are_not(value: object) -> None:
    with pytest.raises(InputError, match="no moment"):
        parse_moment(value)


def test_days() -> None:
    assert (
        parse_day(datetime(2023, 5, 8, 13)) == parse_day(date(2023, 5, 8)) == parse_day(" 2023-05-08 ") == "2023-05-08"
    )
    for value in ("tomorrow", "2023-05-08T13:56", 5, None):
        with pytest.raises(InputError, match="no day"):
            parse_day(value)
    assert whole_day(" 2023-12-31 ") == whole_day(date(2023, 12, 31)) == "2023-12-31"
    assert whole_day("2023-12-31T10:00") is whole_day(datetime(2023, 1, 1)) is whole_day(5) is None


def test_dates_as_people_write_them() -> None:
    assert spoken(parse_moment("2023-05-08T13:56")) == "8 May 2023, 13:56"
    assert spoken(parse_moment("2023-12-24")) == "24 December 2023"


@given(moments)
def test_the_time_zone_of_a_moment_is_kept(moment: datetime) -> None:
    stored, local = parse_local(moment)
    assert stored == stamp(moment)
    assert (local is None) == (not moment.utcoffset())
    if local is not None:
        assert parse_local(local) == (stored, local)
        assert datetime.fromisoformat(local).replace(tzinfo=None) == moment.replace(tzinfo=None)


def test_moments_are_written_with_their_time_zone() -> None:
    assert written(parse_moment("2023-05-08T13:56:59")) == "2023-05-08T13:56Z"
    assert written("2023-05-08T13:56:00.000000-07:00") == "2023-05-08T13:56-07:00"


def test_the_present_moment_is_that_of_this_machine() -> None:
    assert local_now().utcoffset() == datetime.now().astimezone().utcoffset()
    assert abs(local_now() - datetime.now(timezone.utc)) < timedelta(minutes=1)


def test_age() -> None:
    now = datetime(2023, 5, 8, tzinfo=timezone.utc)
    assert age_days(stamp(now - timedelta(hours=36)), now) == 1.5
    assert age_days(stamp(now + timedelta(days=1)), now) == 0
