"""Exact duplicates are recognised in their scope, near ones are linked, and nothing is ever deleted for it."""

from __future__ import annotations

import tracemalloc
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from edge.apps.memory import writing
from edge.apps.memory.arguments import Scope
from edge.apps.memory.memory import Memory
from edge.apps.memory.writing import MOST_LINKS


def add(memory: Memory, text: Any, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = memory.add(text, **{"user_id": "ann"} | options)["results"][0]
    return result


def test_the_same_again_is_recognised(memory: Memory) -> None:
    first = add(memory, "I like tea", metadata={"a": 1})
    again = add(memory, "I like tea", metadata={"a": 1})
    assert (again["event"], again["id"]) == ("NONE", first["id"])
    assert len(memory.get_all(user_id="ann")["results"]) == 1
    assert [line["event"] for line in memory.history(first["id"])] == ["ADD"]


@pytest.mark.parametrize(
    "difference",
    [
        {"metadata": {"a": 1}}, {"timestamp": "2026-01-01"}, {"expiration_date": "2030-01-01"}, {"importance": 0.5},
        {"text": {"role": "assistant", "content": "I like tea"}},
        {"text": {"role": "user", "name": "bo", "content": "I like tea"}},
    ],
)  # fmt: skip
def test_the_same_text_said_otherwise_is_another_memory_and_linked(memory: Memory, difference: dict[str, Any]) -> None:
    first = add(memory, "I like tea")
    second = add(memory, **{"text": "I like tea"} | difference)
    assert second["event"] == "ADD"
    assert [(one["id"], one["similarity"]) for one in second["similar"]] == [(first["id"], 1.0)]
    assert [link["id"] for link in (memory.get(first["id"]) or {})["links"]] == [second["id"]]


@pytest.mark.parametrize("other", [{"user_id": "bob"}, {"agent_id": "x"}, {"run_id": "x"}])
def test_another_scope_has_its_own(memory: Memory, other: dict[str, Any]) -> None:
    first = add(memory, "I like tea")
    second = add(memory, "I like tea", **other)
    assert second["event"] == "ADD"
    assert second["id"] != first["id"]
    assert "similar" not in second
    assert "links" not in (memory.get(first["id"]) or {})


def test_a_conversation_may_repeat_itself(memory: Memory) -> None:
    turns = [{"role": "user", "content": "yes"}] * 3
    results = memory.add(turns, user_id="ann")["results"]
    assert [r["event"] for r in results] == ["ADD"] * 3
    assert len({r["id"] for r in results}) == 3
    again = memory.add(turns, user_id="ann")["results"]
    assert {r["event"] for r in again} == {"NONE"}
    assert len(memory.get_all(user_id="ann")["results"]) == 3


def test_what_is_hidden_is_remembered_anew(memory: Memory, clock: Any) -> None:
    first = add(memory, "I like tea")
    memory.forget(first["id"])
    assert add(memory, "I like tea")["event"] == "ADD"
    add(memory, "milk", expiration_date="2026-06-02")
    clock.forward(days=5)
    assert add(memory, "milk", expiration_date="2026-06-02")["event"] == "ADD"


def test_near_duplicates_are_linked_and_kept(memory: Memory) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    first = add(memory, words)
    near = add(memory, f"{words} indeed")
    assert near["event"] == "ADD"
    assert [one["id"] for one in near["similar"]] == [first["id"]]
    assert writing.NEAR <= near["similar"][0]["similarity"] < 1
    assert "similar" not in add(memory, "something else entirely")
    assert len(memory.get_all(user_id="ann")["results"]) == 3
    memory.delete(first["id"])
    assert "links" not in (memory.get(near["id"]) or {})


def test_near_duplicates_within_one_call_are_linked(memory: Memory) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    results = memory.add([words, "other", f"{words} indeed"], user_id="ann")["results"]
    assert [one["id"] for one in results[2]["similar"]] == [results[0]["id"]]


def test_an_update_links_the_new_text(memory: Memory) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    first, second = add(memory, words), add(memory, "something else")
    memory.update(second["id"], f"{words} indeed")
    assert [link["id"] for link in (memory.get(second["id"]) or {})["links"]] == [first["id"]]
    memory.update(first["id"], "not at all")
    assert "links" not in (memory.get(second["id"]) or {})


def test_links_are_found_in_large_scopes_among_larger_others(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_FEW", 3)
    words = " ".join(f"word{n}" for n in range(30))
    for user in ("ann", "bob"):
        memory.add([f"{user} {n}" for n in range(5)], user_id=user)
    first = add(memory, words)
    memory.add([f"{words} really"] * 4, user_id="bob")
    assert [one["id"] for one in add(memory, f"{words} really")["similar"]] == [first["id"]]


def linked(memory: Memory) -> dict[int, int]:
    """How many earlier memories each is linked to."""
    with memory.store.read() as db:
        return dict(db.execute("SELECT memory, count(*) FROM links GROUP BY memory").fetchall())


def test_a_text_said_again_and_again_is_linked_to_the_last_few(memory: Memory) -> None:
    said = [add(memory, "ok", timestamp=datetime(2026, 1, 1) + timedelta(hours=n)) for n in range(12)]
    assert {one["event"] for one in said} == {"ADD"}
    assert [one["id"] for one in said[-1]["similar"]] == [one["id"] for one in said[-2:-5:-1]]
    assert max(linked(memory).values()) == MOST_LINKS
    again = add(memory, "ok", timestamp=datetime(2026, 1, 1))
    assert (again["event"], again["id"]) == ("NONE", said[0]["id"]), "also what is not among the last few is known"


def test_texts_with_the_same_hash_are_told_apart(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "text_hash", lambda text: "the same")
    add(memory, "I like tea")
    other = add(memory, "bread needs time")
    assert (other["event"], "similar" in other) == ("ADD", False)


def test_the_same_texts_of_one_call_are_linked_to_a_few(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_BLOCK", 7)
    monkeypatch.setattr(writing, "_COLUMNS", 5)
    results = memory.add(["ok", *["well then"] * 40], user_id="ann")["results"]
    assert ["similar" in one for one in results] == [False, False, *[True] * 39]
    assert [len(one["similar"]) for one in results[2:]] == [1, 2, *[MOST_LINKS] * 37]
    for number, one in enumerate(results):
        earlier = {other["id"] for other in results[:number] if other["memory"] == one["memory"]}
        assert {other["id"] for other in one.get("similar", ())} <= earlier


def test_near_ones_of_one_call_are_those_of_a_plain_comparison(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_BLOCK", 7)
    monkeypatch.setattr(writing, "_COLUMNS", 5)
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(4, 64))[generator.integers(4, size=50)] + generator.normal(size=(50, 64)) / 5
    vectors = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
    memory.add("x", user_id="ann")
    index = memory.store.index
    assert index is not None
    with memory.store.read() as db:
        found = writing.find_similar(db, index, vectors, Scope("bob"), memory.budget)
    for row, similar in enumerate(found):
        cosines = vectors[:row] @ vectors[row]
        nearest = [place for place in np.argsort(-cosines) if cosines[place] >= writing.NEAR][:MOST_LINKS]
        assert [-1 - one.id for one in similar] == nearest
    assert sum(map(len, found)) > 60


def test_what_is_compared_with_itself_stays_small_and_is_leased(memory: Memory) -> None:
    memory.add("x", user_id="ann")
    index = memory.store.index
    assert index is not None
    vectors = np.zeros((3_000, 64), np.float32)
    vectors[:, 0] = 1
    held: dict[str, int] = {}
    reserve = memory.budget.reserve

    def noted(owner: str, nbytes: int) -> Any:
        held[owner] = nbytes
        return reserve(owner, nbytes)

    memory.budget.reserve = noted  # type: ignore[method-assign]
    tracemalloc.start()
    with memory.store.read() as db:
        found = writing.find_similar(db, index, vectors, Scope("bob"), memory.budget)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(similar) for similar in found[:5]] == [0, 1, 2, 3, 3]
    assert held["memory duplicates"] == 4 * 256 * 2_048
    assert peak < held["memory duplicates"] + 3_000 * MOST_LINKS * 200
