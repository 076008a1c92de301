"""Moments and days: the understood forms, the stored form, the form in texts. A moment belongs to the day it had where
it was said, not to that of Greenwich."""

from __future__ import annotations

import inspect
import json
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.words import WordEmbedder

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
from edge.apps.memory.memory import Memory
from edge.errors import InputError
from tests.apps.memory.conftest import Make, texts

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


LATE = "2026-05-08T23:30-07:00"


def test_a_moment_is_stored_in_utc_and_shown_as_it_was_given(memory: Memory) -> None:
    identifier = memory.add("we met", user_id="ann", timestamp=LATE)["results"][0]["id"]
    found = memory.get(identifier) or {}
    assert found["timestamp"] == "2026-05-09T06:30:00.000000+00:00"
    assert found["local_timestamp"] == "2026-05-08T23:30:00.000000-07:00"
    memory.update(identifier, timestamp="2026-05-08T23:30")
    found = memory.get(identifier) or {}
    assert (found["timestamp"], found.get("local_timestamp")) == ("2026-05-08T23:30:00.000000+00:00", None)


def test_the_text_is_found_by_the_date_it_had_there(memory: Memory) -> None:
    memory.add("we met", user_id="ann", timestamp=LATE)
    hits = memory.search("what was on 8 May", user_id="ann", rerank=False, explain=True)["results"]
    assert "bm25" in hits[0]["score_details"]
    hits = memory.search("what was on the 9", user_id="ann", rerank=False, explain=True)["results"]
    assert "bm25" not in hits[0]["score_details"]
    memory.update(hits[0]["id"], timestamp="2026-05-09T08:30+02:00")
    hits = memory.search("what was on the 9", user_id="ann", rerank=False, explain=True)["results"]
    assert "bm25" in hits[0]["score_details"], "the same moment, on another day"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("2026-05-08", True), ("2026-05-09", False), ({"ne": "2026-05-08"}, False), ({"gt": "2026-05-08"}, False),
        ({"gte": "2026-05-08", "lte": "2026-05-08"}, True), ({"lt": "2026-05-09"}, True),
        ({"in": ["2026-05-08"]}, True), ({"gte": "2026-05-09"}, False), ({"gte": "2026-05-09T06:30"}, True),
        ({"gt": "2026-05-08T23:31-07:00"}, False),
        (LATE, True), ("2026-05-09T08:30+02:00", True),
    ],
)  # fmt: skip
def test_a_day_in_a_filter_is_the_day_it_was_there(memory: Memory, condition: Any, expected: bool) -> None:
    memory.add("we met", user_id="ann", timestamp=LATE)
    assert bool(memory.get_all(user_id="ann", filters={"timestamp": condition})["results"]) is expected


@pytest.mark.parametrize(
    ("later", "linked"),
    [
        ("2026-05-08T17:01-07:00", True), ("2026-05-09T01:00-07:00", False), ("2026-05-08T23:59-07:00", True),
        ("2026-05-08T22:00-07:00", True), ("2026-05-09T00:01", True), (None, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("together", [True, False])
def test_turns_of_one_evening_are_one_conversation(
    memory: Memory, later: str | None, linked: bool, together: bool
) -> None:
    turns = [
        {"role": "user", "content": "where is your violin", "timestamp": "2026-05-08T16:59-07:00"},
        {"role": "assistant", "content": "upstairs", "timestamp": later},
    ]
    for part in [turns] if together else [turns[:1], turns[1:]]:
        memory.add(part, user_id="ann", run_id="r")
    with memory.store.read() as db:
        (follows,) = db.execute("SELECT follows FROM memories WHERE text = 'upstairs'").fetchone()
    assert (follows is not None) is linked


def test_a_conversation_past_midnight_goes_on(memory: Memory) -> None:
    for said, when in (("good night", "2026-05-08T23:58"), ("sleep well", "2026-05-09T00:03")):
        memory.add({"role": "user", "content": said, "timestamp": when}, user_id="ann", run_id="r")
    with memory.store.read() as db:
        assert db.execute("SELECT count(*) FROM memories WHERE follows IS NOT NULL").fetchone() == (1,)


def test_the_last_day_lasts_until_it_ends_here(make: Make, clock: Any) -> None:
    memory = make()
    clock.now = datetime(2026, 12, 31, 17, tzinfo=timezone(timedelta(hours=-8)))
    memory.add("the sale ends", user_id="ann", expiration_date="2026-12-31")
    assert texts(memory.get_all(user_id="ann")) == texts(memory.search("sale", user_id="ann")) == ["the sale ends"]
    assert memory.add("the sale ends", user_id="ann", expiration_date="2026-12-31")["results"][0]["event"] == "NONE"
    clock.forward(hours=7)
    assert texts(memory.get_all(user_id="ann")) == texts(memory.search("sale", user_id="ann")) == []
    assert memory.add("the sale ends", user_id="ann", expiration_date="2026-12-31")["results"][0]["event"] == "ADD"


def test_without_a_clock_today_is_that_of_this_machine() -> None:
    assert inspect.signature(Memory.__init__).parameters["clock"].default is local_now


def test_the_time_zone_survives_export_and_import(make: Make, tmp_path: Path) -> None:
    one, other = make("one"), make("other", embedder=WordEmbedder(32, "another"))
    one.add("we met", user_id="ann", timestamp=LATE)
    one.export_jsonl(tmp_path / "all.jsonl")
    assert other.import_jsonl(tmp_path / "all.jsonl") == 1
    assert other.get_all(user_id="ann", filters={"timestamp": "2026-05-08"}) == one.get_all(user_id="ann")
    document = json.loads((tmp_path / "all.jsonl").read_text(encoding="utf-8"))
    for changes in ({"local_timestamp": None, "timestamp": LATE}, {"local_timestamp": "2026-05-08T23:30-08:00"}):
        line = document | {"id": str(changes)} | changes
        (tmp_path / "one.jsonl").write_text(json.dumps(line), encoding="utf-8")
        if changes["local_timestamp"] is None:
            assert other.import_jsonl(tmp_path / "one.jsonl") == 1
            assert len(other.get_all(user_id="ann", filters={"timestamp": "2026-05-08"})["results"]) == 2
        else:
            with pytest.raises(InputError, match=r"line 1: .*another moment"):
                other.import_jsonl(tmp_path / "one.jsonl")
