"""Whole conversations: how they are found, what they were about, and their turns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from apsw import Connection

from edge.apps.memory import searching
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import Record, read_records
from edge.apps.memory.searching import (
    REPLIED,
    REPLY,
    SHARE,
    beside_their_conversations,
    central_sentences,
    conversation_scores,
    said_before_replies,
)  # fmt: skip
from edge.errors import InputError
from tests.apps.memory.conftest import Make

ROOF = (
    "The roof leaks again. The builder came at noon.",
    "What did the builder say about the roof?",
    "New tiles for the roof, before winter. The builder wants them in red.",
    "Good, then red tiles. Did you eat?",
)
TRIP = ("We go to Bergen by train.", "Is the train in the morning?", "The morning train, yes.")


def talk(memory: Memory, texts: tuple[str, ...], when: str, **ids: str) -> list[str]:
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return [one["id"] for one in memory.add(said, timestamp=when, **ids)["results"]]


def turns(memory: Memory, one: str, **ids: Any) -> list[str]:
    return [hit["memory"] for hit in memory.get_all(filters={"conversation_of": one}, **ids)["results"]][::-1]


def test_a_search_finds_conversations_beside_memories(memory: Memory) -> None:
    ids = talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    talk(memory, TRIP, "2026-05-03", run_id="r", user_id="ann")
    memory.add("The roof is old", user_id="ann")
    found = memory.search("what did we decide about the roof?", 2, user_id="ann", conversations=3)
    assert [len(found["results"]), len(found["conversations"])] == [2, 2]  # a fact alone is no conversation
    first = found["conversations"][0]
    assert (first["id"], first["run_id"], first["user_id"], first["turns"]) == (ids[0], "r", "ann", 4)
    assert first["began"] == first["ended"] == "2026-05-01T00:00:00.000000+00:00"
    assert "New tiles for the roof, before winter." in first["about"]
    assert "conversations" not in memory.search("roof", user_id="ann")
    alone = memory.search("train", 0, user_id="ann", conversations=1)
    assert (alone["results"], alone["conversations"][0]["turns"]) == ([], 3)


def test_a_conversation_is_found_by_any_of_its_turns_and_by_nobody_else(memory: Memory) -> None:
    ids = talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    assert turns(memory, ids[2], user_id="ann") == list(ROOF)
    assert turns(memory, ids[2], user_id="bob") == []
    assert turns(memory, "nobody", user_id="ann") == []
    memory.delete(ids[0])  # the first turn
    memory.delete(ids[2])
    assert turns(memory, ids[3], user_id="ann") == [ROOF[1], ROOF[3]]
    fact = memory.add("The roof is old", user_id="ann")["results"][0]["id"]
    assert turns(memory, fact, user_id="ann") == ["The roof is old"]
    goes_on = talk(memory, ("And the door?",), "2026-05-01T02:00", run_id="r", user_id="ann")
    assert turns(memory, goes_on[0], user_id="ann") == [ROOF[1], ROOF[3], "And the door?"]
    with pytest.raises(InputError, match="conversation_of"):
        memory.get_all(user_id="ann", filters={"conversation_of": 1})


def test_what_a_person_said_stands_before_an_assistants_reply(memory: Memory) -> None:
    scores = said_before_replies([(1, 0.2), (2, 0.9), (3, 0.5), (4, 0.05), (6, 0.7)], {2: 1, 4: 3, 6: 2})
    assert scores == pytest.approx({1: REPLIED * 0.9, 2: 0.9 - REPLY, 3: 0.5, 4: 0.0, 6: 0.7 - REPLY})


def test_what_a_person_said_is_found_by_the_reply(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "DEPTH", 2)  # the person's own turn is in neither ranking
    talk(memory, ("It drips on my desk", "The roof leaks: call the builder of the roof"), "2026-05-01", run_id="r")
    memory.add([f"The roof number {n} is red" for n in range(6)], run_id="r", timestamp="2026-05-09")
    wanted: dict[str, Any] = {"run_id": "r", "rerank": False}
    assert memory.search("roof builder", 1, **wanted)["results"][0]["memory"] == "It drips on my desk"
    replies = memory.search("roof builder", 1, filters={"role": "assistant"}, **wanted)["results"]
    assert [hit["memory"] for hit in replies] == ["The roof leaks: call the builder of the roof"]


def test_conversations_outlive_an_export(make: Make) -> None:
    memory = make()
    for number in range(3):
        talk(memory, ROOF, f"2026-05-{number + 1:02}", run_id="r", user_id="ann")
    ids = talk(memory, TRIP, "2026-05-09", run_id="r", user_id="ann")
    lines = io.StringIO()
    memory.export_jsonl(lines)
    memory.close()
    copy = make("copy")
    copy.import_jsonl(io.StringIO(lines.getvalue()))
    assert turns(copy, ids[1], user_id="ann") == list(TRIP)


def test_a_memory_counts_its_conversation() -> None:
    """Against the sums written out."""
    scores = [(1, 0.9), (4, 0.8), (2, 0.4), (5, 0.2), (3, 0.1)]
    first = {1: 1, 2: 2, 3: 2, 4: 2, 5: 5}
    whole = {1: 0.9, 2: 0.8 + 0.4 / 2 + 0.1 / 4, 5: 0.2}
    assert conversation_scores(scores, first) == pytest.approx(whole)
    mixed = {turn: (1 - SHARE) * score + SHARE * whole[first[turn]] for turn, score in scores}
    found = beside_their_conversations(scores, first)
    assert dict(found) == pytest.approx(mixed)
    assert [turn for turn, _ in found] == sorted(mixed, key=lambda turn: -mixed[turn])
    assert dict(found)[5] == pytest.approx(0.2)
    many = [(turn, 0.5) for turn in range(9)]
    assert conversation_scores(many, dict.fromkeys(range(9), 0)) == pytest.approx({0: 0.5 * (2 - 1 / 16)})


def test_central_sentences_say_different_things_and_are_few_and_in_order() -> None:
    texts = [
        "Hello there. The cat sleeps on the warm roof.",
        "The cat on the roof? Yes.",
        "The train is late. Which train?",
    ]
    found = central_sentences(texts, lambda text: [w for w in text.lower().strip(".?").split() if len(w) > 3])
    assert len(found) == 3
    assert {"The cat sleeps on the warm roof.", "The train is late."} <= set(found)
    assert found == sorted(found, key=" ".join(texts).index)
    assert central_sentences([], str.split) == []


def test_of_a_long_conversation_few_turns_are_read(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[set[int]] = []

    def reading(db: Connection, ids: set[int]) -> dict[int, Record]:
        read.append(set(ids))
        return read_records(db, ids)

    monkeypatch.setattr(searching, "read_records", reading)
    talk(memory, [f"The roof leaks in room {n}." for n in range(1_000)], "2026-05-01", run_id="r", user_id="ann")
    found = memory.search("roof", 0, user_id="ann", conversations=1)["conversations"]
    assert [(talk["turns"], len(talk["about"])) for talk in found] == [(1_000, 3)]
    assert len(read[-1]) <= 301
    assert {1, 1_000} <= read[-1]


def test_what_conversations_were_about_counts_among_the_tokens(memory: Memory) -> None:
    talk(memory, ROOF, "2026-05-01", run_id="r", user_id="ann")
    wide = memory.search("roof", user_id="ann", conversations=1, max_tokens=2_000)
    assert wide["conversations"]
    least = next(
        most
        for most in range(1, 2_000)
        if memory.search("roof", user_id="ann", conversations=1, max_tokens=most)["tokens"]
    )
    for most in (least, 60, 100):
        found = memory.search("roof", user_id="ann", conversations=1, max_tokens=most)
        assert found["tokens"] <= most
    plain = memory.search("roof", user_id="ann", max_tokens=2_000)
    assert plain["tokens"] < wide["tokens"]
