"""Text that cannot be stored or searched for is refused with one sentence, wherever it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge.apps.memory.memory import Memory
from edge.errors import InputError

HALF = "\ud800"
"""Half a character: a Python text that no file can hold."""

Call = Callable[[Memory], Any]

CALLS: dict[str, Call] = {
    "name that is a list": lambda m: m.add({"role": "user", "content": "x", "name": ["a"]}, user_id="a"),
    "name that is a number": lambda m: m.add({"role": "user", "content": "x", "name": 5}, user_id="a"),
    "half a name": lambda m: m.add({"role": "user", "content": "x", "name": HALF}, user_id="a"),
    "half a role": lambda m: m.add({"role": HALF, "content": "x"}, user_id="a"),
    "role that is a number": lambda m: m.add({"role": 5, "content": "x"}, user_id="a"),
    "part without text": lambda m: m.add({"content": [{"type": "text", "text": None}]}, user_id="a"),
    "part with a number": lambda m: m.add({"content": [{"type": "text", "text": 5}]}, user_id="a"),
    "half a user": lambda m: m.add("x", user_id=HALF),
    "half a user searched": lambda m: m.search("x", user_id=HALF),
    "half a value": lambda m: m.search("x", user_id="a", filters={"k": HALF}),
    "half a value compared": lambda m: m.get_all(user_id="a", filters={"k": {"gt": HALF}}),
    "half a value contained": lambda m: m.get_all(user_id="a", filters={"k": {"icontains": HALF}}),
    "half a key": lambda m: m.get_all(user_id="a", filters={HALF: 1}),
    "half a scope in filters": lambda m: m.get_all(filters={"user_id": HALF}),
    "deep value": lambda m: m.get_all(user_id="a", filters={"k": nested()}),
    "deep list": lambda m: m.get_all(user_id="a", filters={"k": {"in": [nested()]}}),
    "deep metadata": lambda m: m.add("x", user_id="a", metadata=nested()),
    "metadata that some callers could not read": lambda m: m.add("x", user_id="a", metadata=nested(900)),
    "metadata one level too deep": lambda m: m.add("x", user_id="a", metadata={"k": [nested(98)]}),
    "trajectory one level too deep": lambda m: m.actions.add("t", [nested(99)], user_id="a"),
    "metadata with a number as key": lambda m: m.add("x", user_id="a", metadata={1: 2}),  # type: ignore[dict-item]
    "half a value in a list": lambda m: m.get_all(user_id="a", filters={"k": {"in": ["x", HALF]}}),
    "metadata with NUL": lambda m: m.add("x", user_id="a", metadata={"k": [{"n\0": 1}]}),
    "half an id": lambda m: m.get(HALF),
    "id that is a list": lambda m: m.get(["a"]),  # type: ignore[arg-type]
    "id that is nothing": lambda m: m.get(None),  # type: ignore[arg-type]
    "half an id deleted": lambda m: m.delete(HALF),
    "half an id updated": lambda m: m.update(HALF, "x"),
    "half an id pinned": lambda m: m.pin(HALF),
    "history of a mapping": lambda m: m.history({}),  # type: ignore[arg-type]
    "history of half an id": lambda m: m.history(HALF),
    "no recency": lambda m: m.search("x", user_id="a", recency=None),  # type: ignore[arg-type]
    "no importance": lambda m: m.search("x", user_id="a", importance=None),  # type: ignore[arg-type]
    "no half life": lambda m: m.search("x", user_id="a", half_life=None),  # type: ignore[arg-type]
    "half life in words": lambda m: m.search("x", user_id="a", half_life="3"),  # type: ignore[arg-type]
    "no state": lambda m: m.actions.add("t", [1], state=None, user_id="a"),  # type: ignore[arg-type]
    "no state looked up": lambda m: m.actions.lookup("t", state=None, user_id="a"),  # type: ignore[arg-type]
    "half a state": lambda m: m.actions.add("t", [1], state=HALF, user_id="a"),
    "half a state looked up": lambda m: m.actions.lookup("t", state=HALF, user_id="a"),
    "half a state compared": lambda m: m.actions.candidates("t", state=HALF, user_id="a"),
    "half a trajectory": lambda m: m.actions.add("t", [HALF], user_id="a"),
    "half a user of an action": lambda m: m.actions.add("t", [1], user_id=HALF),
    "half an action": lambda m: m.actions.get(HALF),
    "action that is a list": lambda m: m.actions.feedback([1], True),  # type: ignore[arg-type]
    "half an action deleted": lambda m: m.actions.delete(HALF),
    "action without a task": lambda m: m.actions.add("", [], user_id="a"),
    "trajectory that is no JSON": lambda m: m.actions.add("t", {1, 2}, user_id="a"),
    "action of nobody": lambda m: m.actions.add("t", []),
}


def nested(levels: int = 100_000) -> dict[str, Any]:
    """Mappings in a mapping, so many."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "add": (
        *({"messages": wrong} for wrong in (7, [7], "", "  ", {"role": "user", "content": 5}, HALF)),
        {"metadata": {"x": float("nan")}}, {"metadata": {"x": {1}}}, {"metadata": {"x": HALF}}, {"importance": 2},
        {"timestamp": "yesterday"}, {"expiration_date": "2026-13-01"}, {"user_id": ""}, {"user_id": None},
        {"user_id": 1.5},
    ),
    "search": (
        {"query": ""}, {"query": 5}, {"top_k": -1}, {"top_k": True}, {"top_k": 1.5}, {"threshold": 1.2},
        {"threshold": "x"}, {"recency": 0.6, "importance": 0.6}, {"recency": 2}, {"half_life": 0}, {"user_id": None},
        {"neighbours": -1},
    ),
    "select": (
        {"query": ""}, {"query": 5}, {"query": "x" * 100_001}, {"budget_tokens": 0}, {"budget_tokens": True},
        *({"text": wrong} for wrong in ([{"role": "user"}], ["x"], 5, b"text", None)),
    ),
}  # fmt: skip
USUAL: dict[str, dict[str, Any]] = {
    "add": {"messages": "x", "user_id": "a"},
    "search": {"query": "tea", "user_id": "a"},
    "select": {"text": "text", "query": "q", "budget_tokens": 5, "count": len},
}
CALLS |= {
    f"{verb} {wrong}": lambda m, verb=verb, wrong=wrong: getattr(m, verb)(**USUAL[verb] | wrong)
    for verb, every in OPTIONS.items()
    for wrong in every
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_cannot_be_is_refused_in_one_sentence(memory: Memory, call: Call) -> None:
    memory.add("tea", user_id="a")
    memory.actions.add("t", [1], user_id="a")
    with pytest.raises(InputError, match=r"^[^\n]{10,300}$"):
        call(memory)
    assert len(memory.get_all(user_id="a")["results"]) == 1


def test_the_deepest_metadata_are_read_wherever_the_caller_stands(memory: Memory) -> None:
    memory.add("x", user_id="a", metadata={"k": [nested(97)]})

    def called(levels: int) -> Any:
        return called(levels - 1) if levels else memory.get_all(user_id="a")["results"]

    (found,) = called(400)
    assert found["metadata"] == {"k": [nested(97)]}


@pytest.mark.parametrize("path", ["a\0b", HALF, 5])
def test_what_can_be_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match=r"is no path|path must be str"):
        Memory(path)


def test_a_backslash_is_no_nul(memory: Memory) -> None:
    memory.add("x", user_id="a", metadata={"path": "C:\\u0000"})
    found = memory.get_all(user_id="a", filters={"path": "C:\\u0000"})["results"]
    assert [hit["memory"] for hit in found] == ["x"]
