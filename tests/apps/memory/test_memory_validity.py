"""What holds now, what held at a moment, and what took whose place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.apps.memory import searching
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import read_records
from edge.apps.memory.searching import POOL
from edge.errors import InputError
from tests.apps.memory.conftest import Make


def texts(result: dict[str, Any]) -> set[str]:
    return {found["memory"] for found in result["results"]}


def add(memory: Memory, text: str, **options: Any) -> str:
    return str(memory.add(text, **{"user_id": "ann"} | options)["results"][0]["id"])


def homes(memory: Memory) -> list[str]:
    """Three homes, each with the one after it in its place: since January, May 2025 and January 2026."""
    ids = [
        add(memory, f"home is {city}", timestamp=when)
        for city, when in (("Oslo", "2025-01-01"), ("Bergen", "2025-05-01"), ("Bodo", "2026-01-01"))
    ]
    memory.supersede(ids[0], ids[1])
    memory.supersede(ids[1], ids[2])
    return ids


@pytest.mark.parametrize("rerank", [False, True])
def test_search_returns_what_holds_or_held(memory: Memory, rerank: bool) -> None:
    homes(memory)
    add(memory, "home is warm")
    held = {
        None: {"home is Bodo", "home is warm"}, "2024-12-31": set(), "2025-01-01": {"home is Oslo"},
        "2025-04-30": {"home is Oslo"}, "2025-05-01": {"home is Bergen"}, "2025-05-01T00:00": {"home is Bergen"},
        "2026-05-31": {"home is Bodo"}, "2026-06-01": {"home is Bodo", "home is warm"},
    }  # fmt: skip
    for moment, right in held.items():
        assert texts(memory.search("home", user_id="ann", as_of=moment, rerank=rerank)) == right, moment
    every = memory.search("home", user_id="ann", show_expired=True, rerank=rerank)
    assert len(every["results"]) == 4
    with pytest.raises(InputError, match="as_of"):
        memory.search("home", user_id="ann", as_of="then")


def test_ended_memories_are_still_there_and_marked(memory: Memory) -> None:
    ids = homes(memory)
    first = memory.get(ids[0])
    assert first is not None
    assert (first["valid_until"], first["superseded_by"]) == ("2025-05-01T00:00:00.000000+00:00", ids[1])
    listed = memory.get_all(user_id="ann")["results"]
    assert [found.get("superseded_by") for found in listed] == [None, ids[2], ids[1]]
    ended = memory.get_all(user_id="ann", filters={"valid_until": {"lt": "2025-06-01"}})
    assert texts(ended) == {"home is Oslo"}


def test_the_chain_is_told_from_every_member(memory: Memory) -> None:
    ids = homes(memory)
    add(memory, "home is warm")
    for member in ids:
        chain = memory.history(member, whole_chain=True)
        assert [(line["event"], ids.index(line["memory_id"])) for line in chain] == [
            ("ADD", 0), ("ADD", 1), ("ADD", 2), ("SUPERSEDE", 0), ("SUPERSEDE", 1),
        ]  # fmt: skip
    assert [line["event"] for line in memory.history(ids[0])] == ["ADD", "SUPERSEDE"]
    memory.delete(ids[1])
    assert len(memory.history(ids[1], whole_chain=True)) == 5, "the history of a deleted memory stays"


def test_superseding_is_undone(memory: Memory) -> None:
    ids = homes(memory)
    before = memory.get_all(user_id="ann")
    memory.supersede(ids[0], None)
    assert texts(memory.search("home", user_id="ann")) == {"home is Oslo", "home is Bodo"}
    memory.supersede(ids[0], None)
    assert [line["event"] for line in memory.history(ids[0])] == ["ADD", "SUPERSEDE", "REINSTATE"]
    memory.supersede(ids[0], ids[1])
    again = memory.get_all(user_id="ann")
    assert [m | {"updated_at": ""} for m in again["results"]] == [m | {"updated_at": ""} for m in before["results"]]


def test_who_may_take_whose_place(memory: Memory, make: Make) -> None:
    ids = homes(memory)
    other, run = add(memory, "home is mine", user_id="bob"), add(memory, "home is here", run_id="r")
    for old, new in ((ids[0], ids[0]), (ids[2], ids[0]), (ids[0], other), (ids[0], "none"), ("none", ids[0])):
        with pytest.raises(InputError):
            memory.supersede(old, new)
    memory.supersede(ids[2], run)
    bound = memory.within(memory.bound.of({"user_id": "bob"}))
    with pytest.raises(InputError, match="no memory"):
        bound.supersede(ids[0], other)
    assert bound.history(ids[0], whole_chain=True) == []


def test_an_older_statement_may_take_the_place_of_a_later_one(memory: Memory) -> None:
    old, new = add(memory, "tea", timestamp="2025-01-01"), add(memory, "coffee", timestamp="2025-02-01")
    memory.supersede(new, old)
    found = memory.get(new)
    assert found is not None
    assert found["valid_until"] == found["timestamp"]
    assert texts(memory.search("tea coffee", user_id="ann", as_of="2026-01-01")) == {"tea"}


def test_times_of_validity_are_given_and_taken_away(memory: Memory, clock: Any) -> None:
    work = add(memory, "works at Initech", valid_from="2019-03-01", valid_until="2026-07-01", timestamp="2026-05-01")
    add(memory, "works at Hooli", valid_from="2026-07-01", timestamp="2026-05-01")
    for moment, right in ((None, "Initech"), ("2020-01-01", "Initech"), ("2026-07-02", "Hooli")):
        assert texts(memory.search("works", user_id="ann", as_of=moment)) == {f"works at {right}"}
    clock.forward(days=31)
    assert texts(memory.search("works", user_id="ann")) == {"works at Hooli"}
    memory.update(work, valid_until=None)
    assert texts(memory.search("works", user_id="ann")) == {"works at Hooli", "works at Initech"}
    memory.update(work, valid_from=None)
    assert texts(memory.search("works", user_id="ann", as_of="2020-01-01")) == set()
    for change in ({"valid_from": "2026-01-02", "valid_until": "2026-01-01"}, {"valid_from": "soon"}):
        with pytest.raises(InputError):
            memory.update(work, **change)
        with pytest.raises(InputError):
            add(memory, "x", **change)


def test_what_ended_may_be_said_again(memory: Memory) -> None:
    oslo, bergen = add(memory, "home is Oslo"), add(memory, "home is Bergen")
    memory.supersede(oslo, bergen)
    again = memory.add("home is Oslo", user_id="ann")["results"][0]
    assert again["event"] == "ADD"
    assert memory.add("home is Oslo", user_id="ann")["results"][0]["event"] == "NONE"


def test_the_ids_that_hold_are_read_once(memory: Memory, clock: Any) -> None:
    homes(memory)
    memory.search("home", user_id="ann", rerank=False)
    remembered = memory._searcher._remembered
    clock.forward(minutes=1)
    memory.search("home", user_id="ann", rerank=False)
    assert memory._searcher._remembered is remembered


def test_a_search_reads_the_rows_of_its_pool_alone(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the dear part of a search. The ids that are allowed make no difference, given as a list or not."""
    memory.add([f"home of {number}" for number in range(150)], user_id="ann")
    homes(memory)
    add(memory, "home is far", user_id="bob")
    with memory.store.read() as db:
        most = len(searching.read_records(db, range(1, 200)))
    read: list[int] = []

    def counted(db: Any, ids: Any) -> Any:
        read.append(len(ids))
        return read_records(db, ids)

    monkeypatch.setattr(searching, "read_records", counted)
    found = memory.search("home", 150, user_id="ann", rerank=False)["results"]
    assert (most, len(found)) == (154, 150)
    del read[:]
    few = memory.search("Bodo is", 5, user_id="ann", rerank=False)["results"]
    assert few[0]["memory"] == "home is Bodo"
    assert len(read) == 1
    assert POOL <= read[0] <= POOL + 2  # and those that stand for the same memory
    monkeypatch.setattr(searching, "_LISTED", 0)
    assert memory.search("Bodo is", 5, user_id="ann", rerank=False)["results"] == few


def test_the_command(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from edge.apps.memory.command import memory as command

    monkeypatch.setenv("EDGE_MEMORY", "100GB")
    memory = make()
    old, new = (add(memory, text, user_id="default") for text in ("tea is good", "tea is bad"))
    memory.close()

    def run(*words: str) -> Any:
        return CliRunner().invoke(command, [*words, "--path", str(tmp_path / "memory")], catch_exceptions=False)

    assert "(until 2026-06-01T12:00Z)" in run("supersede", old, new).output
    assert "(until" in run("list").output
    assert "SUPERSEDE" in run("history", new, "--chain").output
    assert "(until" not in run("supersede", old, "--undo").output
    for wrong in ((old,), (old, new, "--undo")):
        with pytest.raises(InputError, match="take"):
            run("supersede", *wrong)
