"""The verbs of a memory, and input that is refused with one sentence, wherever it comes in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth

from edge.apps.memory.memory import Memory
from edge.config import Config
from edge.errors import InputError, ModelError
from tests.apps.memory.conftest import Make, add, texts


def test_what_is_added_can_be_got_with_everything_said_about_it(memory: Memory) -> None:
    result = memory.add(
        {"role": "assistant", "content": "Ann plays chess", "name": "bot"},
        user_id="ann",
        agent_id=7,
        metadata={"topic": "games", "tags": ["a", 1]},
        timestamp="2023-05-08T13:56:00+02:00",
        expiration_date=date(2030, 1, 2),
        importance=0.9,
    )
    (added,) = result["results"]
    assert {name: added[name] for name in ("memory", "event", "role", "actor_id")} == {
        "memory": "Ann plays chess", "event": "ADD", "role": "assistant", "actor_id": "bot",
    }  # fmt: skip
    assert memory.get(added["id"]) == {
        "id": added["id"], "memory": "Ann plays chess", "hash": "270c9ae2695ba2c67ec6c39ae40eb2b1",
        "metadata": {"topic": "games", "tags": ["a", 1]}, "created_at": "2026-06-01T12:00:00.000000+00:00",
        "updated_at": "2026-06-01T12:00:00.000000+00:00", "user_id": "ann", "agent_id": "7", "actor_id": "bot",
        "role": "assistant", "timestamp": "2023-05-08T11:56:00.000000+00:00",
        "local_timestamp": "2023-05-08T13:56:00.000000+02:00", "expiration_date": "2030-01-02",
        "importance": 0.9,
    }  # fmt: skip


def test_messages_are_remembered_one_by_one_without_system_ones(memory: Memory) -> None:
    result = memory.add(
        [
            {"role": "system", "content": "You are helpful"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "I like tea"}, {"type": "image_url", "image_url": {}}],
            },
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant", "content": "Noted", "timestamp": 0, "metadata": {"k": 2}},
            "and a plain string",
        ],
        user_id="ann",
        metadata={"k": 1, "m": 1},
    )
    assert texts(result) == ["I like tea", "Noted", "and a plain string"]
    noted = memory.get(result["results"][1]["id"])
    assert noted is not None
    assert noted["timestamp"].startswith("1970-01-01T00:00")
    assert noted["metadata"] == {"k": 2, "m": 1}


def test_update_changes_what_is_given_and_keeps_the_rest(memory: Memory, clock: Any) -> None:
    identifier = add(memory, "I drink tea", metadata={"a": 1, "b": 1}, expiration_date="2027-01-01", importance=0.1)
    clock.forward(hours=1)
    assert memory.update(identifier, "I drink coffee", {"b": 2}) == {"message": "Memory updated successfully!"}
    found = memory.get(identifier)
    assert found is not None
    assert (found["memory"], found["metadata"], found["expiration_date"]) == (
        "I drink coffee", {"a": 1, "b": 2}, "2027-01-01",
    )  # fmt: skip
    assert found["created_at"] < found["updated_at"] == "2026-06-01T13:00:00.000000+00:00"
    assert texts(memory.search("coffee", user_id="ann", rerank=False, threshold=0.1)) == ["I drink coffee"]
    assert texts(memory.search("tea", user_id="ann", rerank=False, threshold=0.1)) == []
    memory.update(identifier, data="I drink milk", expiration_date=None, importance=None, timestamp="2026-01-01")
    found = memory.get(identifier)
    assert found is not None
    assert found["memory"] == "I drink milk"
    assert not {"expiration_date", "importance"} & set(found)
    with pytest.raises(InputError, match="nothing to update"):
        memory.update(identifier)


def test_history_outlives_the_memory(memory: Memory, clock: Any) -> None:
    identifier = add(memory, "one")
    clock.forward(hours=1)
    memory.update(identifier, "two")
    memory.pin(identifier)
    memory.pin(identifier)  # nothing new
    memory.pin(identifier, False)
    memory.forget(identifier)
    memory.forget(identifier, False)
    memory.delete(identifier)
    history = memory.history(identifier)
    assert [line["event"] for line in history] == ["ADD", "UPDATE", "PIN", "UNPIN", "FORGET", "RECALL", "DELETE"]
    assert history[1] == {
        "id": history[1]["id"], "memory_id": identifier, "old_memory": "one", "new_memory": "two", "event": "UPDATE",
        "created_at": "2026-06-01T12:00:00.000000+00:00", "updated_at": "2026-06-01T13:00:00.000000+00:00",
        "is_deleted": False, "actor_id": None, "role": "user",
    }  # fmt: skip
    assert (history[-1]["old_memory"], history[-1]["new_memory"], history[-1]["is_deleted"]) == ("two", None, True)
    assert memory.history("nobody") == []


def test_get_all_lists_newest_first_up_to_a_number(memory: Memory, clock: Any) -> None:
    for number in range(25):
        add(memory, f"memory {number}")
        clock.forward(seconds=1)
    assert texts(memory.get_all(user_id="ann")) == [f"memory {n}" for n in range(24, 4, -1)]
    assert texts(memory.get_all(filters={"user_id": "ann"}, top_k=2)) == ["memory 24", "memory 23"]
    assert texts(memory.get_all(user_id="ann", limit=1)) == ["memory 24"]
    assert len(memory.get_all(user_id="ann", top_k=100)["results"]) == 25


def test_delete_and_delete_all_and_reset(memory: Memory) -> None:
    first, second, third = (add(memory, f"text {n}", user_id=u) for n, u in enumerate(("ann", "ann", "bob")))
    memory.delete(first)
    assert memory.get(first) is None
    with pytest.raises(InputError, match="no memory"):
        memory.delete(first)
    assert memory.delete_all(user_id="ann") == {"message": "Memories deleted successfully!"}
    assert (memory.get(second), memory.get(third) is not None) == (None, True)
    with pytest.raises(InputError, match="scope"):
        memory.delete_all()
    memory.reset()
    assert memory.history(first) == memory.history(third) == []
    assert memory.search("text", user_id="bob")["results"] == []
    assert texts(memory.add("text 2", user_id="bob")) == ["text 2"]
    assert texts(memory.search("text", user_id="bob")) == ["text 2"]


def test_more_is_deleted_than_fits_one_transaction(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.apps.memory.writing._DELETED_TOGETHER", 10)
    memory.add([f"number {n}" for n in range(21)], user_id="ann")
    keep = add(memory, "bob's", user_id="bob")
    memory.delete_all("ann")
    assert memory.get_all(user_id="ann")["results"] == []
    assert memory.get(keep) is not None


@pytest.mark.parametrize("filled", [False, True])
def test_verbs_on_what_is_not_there(memory: Memory, filled: bool) -> None:
    if filled:
        add(memory, "something")
    assert memory.get("x") is None
    assert memory.search("anything", user_id="bob") == memory.search("some", 0, user_id="ann") == {"results": []}
    assert memory.add([{"role": "system", "content": "rules"}], user_id="ann") == memory.add([], user_id="ann")
    for call in (lambda: memory.update("x", "y"), lambda: memory.delete("x"), lambda: memory.pin("x")):
        with pytest.raises(InputError, match="there is no memory 'x'"):
            call()
    assert memory.delete_all(user_id="bob") == {"message": "Memories deleted successfully!"}
    memory.reset()


def test_another_embedder_is_refused_with_both_names(make: Make) -> None:
    from naive.words import WordEmbedder

    with make() as memory:
        add(memory, "text")
    other = make(embedder=WordEmbedder(fingerprint="other"))
    with pytest.raises(ModelError, match=r"embedded with WordEmbedder \(words\), not with WordEmbedder \(other\)"):
        add(other, "text")


def test_a_memory_is_opened_again_by_the_embedder_it_was_made_with(make: Make, tmp_path: Path) -> None:
    """By name, by the files of one handed over, or, for one without files, by the configuration."""
    from edge.runtimes.embedder import Embedder

    synth("tiny-bert-embedder", tmp_path / "models" / "tiny").close()
    with Embedder(tmp_path / "models" / "tiny", memory="10GB") as embedder, make("files", embedder=embedder) as memory:
        add(memory, "I like tea")
    with make("files", embedder=None) as memory:
        assert texts(memory.search("tea", user_id="ann")) == ["I like tea"]
    with make("words") as memory:
        add(memory, "I like tea")
    config = Config(memory=10**11, embedder="tiny", models_dir=str(tmp_path / "models"))
    with make("words", embedder=None, config=config) as memory, pytest.raises(ModelError, match="WordEmbedder"):
        memory.search("tea", user_id="ann")


def test_all_memory_is_given_back(make: Make) -> None:
    memory = make()
    for n in range(50):
        add(memory, f"text {n}")
    memory.search("text", user_id="ann")
    memory.close()
    assert set(memory.budget.holders()) == {"process"}


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
