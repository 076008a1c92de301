"""Data of one scope is never returned to another: every way to ask, over random histories."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.words import WordEmbedder, WordReranker

from edge.apps.memory.arguments import Scope
from edge.apps.memory.memory import Memory
from edge.errors import InputError
from tests.apps.memory.conftest import Make

FIELDS = ("user_id", "agent_id", "run_id")
TEXTS = ("tea is good", "tea is bad", "good coffee", "bad coffee")

ids = st.sampled_from([None, "x", "y"])
scopes = st.fixed_dictionaries({name: ids for name in FIELDS})
named = scopes.filter(lambda scope: any(scope.values()))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), named, st.sampled_from(TEXTS)),
        st.tuples(st.just("update"), st.integers(0, 20), st.sampled_from(TEXTS)),
        st.tuples(st.just("delete"), st.integers(0, 20), st.just("")),
        st.tuples(st.just("delete_all"), named, st.just("")),
        st.tuples(st.just("forget"), st.integers(0, 20), st.just("")),
    ),
    max_size=12,
)


def open_memory(folder: str, **bound: Any) -> Memory:
    return Memory(Path(folder), embedder=WordEmbedder(16), reranker=WordReranker(), memory="10GB", **bound)


def inside(stored: dict[str, Any], asked: dict[str, Any]) -> bool:
    return all(value is None or stored.get(name) == value for name, value in asked.items())


@settings(max_examples=40)
@given(steps=steps, asked=st.lists(named, min_size=1, max_size=3), rerank=st.booleans())
def test_nothing_leaves_its_scope(steps: list[Any], asked: list[dict[str, Any]], rerank: bool) -> None:
    with TemporaryDirectory() as folder, open_memory(folder) as memory:
        model: dict[str, dict[str, Any]] = {}
        for verb, whose, text in steps:
            known = sorted(model)
            if verb == "add":
                added = memory.add(text, **whose)["results"][0]
                if added["event"] == "ADD":
                    model[added["id"]] = {**whose, "memory": text, "hidden": False}
                assert inside(model[added["id"]], whose)
                assert {name: model[added["id"]][name] for name in FIELDS} == whose, "a twin of another scope"
                for other in added.get("similar", ()):
                    assert {name: model[other["id"]][name] for name in FIELDS} == whose
            elif verb == "delete_all":
                memory.delete_all(**whose)
                model = {i: m for i, m in model.items() if not inside(m, whose)}
            elif known:
                chosen = known[whose % len(known)]
                if verb == "update":
                    memory.update(chosen, text)
                    model[chosen]["memory"] = text
                elif verb == "delete":
                    memory.delete(chosen)
                    del model[chosen]
                else:
                    memory.forget(chosen)
                    model[chosen]["hidden"] = True
        for whose in asked:
            expected = {i for i, m in model.items() if inside(m, whose) and not m["hidden"]}
            filters = {name: value for name, value in whose.items() if value is not None}
            found = memory.search("good tea or coffee", 50, **whose, rerank=rerank, neighbours=3)["results"]
            assert {hit["id"] for hit in found} == expected
            for hit in found:
                assert hit["memory"] == model[hit["id"]]["memory"]
                for turn in hit["neighbours"]:
                    assert {n: model[turn["id"]][n] for n in FIELDS} == {n: model[hit["id"]][n] for n in FIELDS}
            assert {m["id"] for m in memory.get_all(filters=filters, top_k=50)["results"]} == expected
            assert {m["id"] for m in memory.search("tea", 50, filters={"AND": [filters]})["results"]} == expected
        bound = asked[0]
        everything = {i for i, m in model.items()}
        with open_memory(folder, **bound) as narrow:
            for identifier in everything:
                own = inside(model[identifier], bound)
                assert (narrow.get(identifier) is not None) == own
                assert bool(narrow.history(identifier)) == own
                if not own:
                    for call in (narrow.delete, narrow.pin, narrow.forget, lambda i: narrow.update(i, "mine now")):
                        with pytest.raises(InputError, match="no memory"):
                            call(identifier)
            target = Path(folder) / "export.jsonl"
            assert narrow.export_jsonl(target) == sum(inside(m, bound) for m in model.values())


def test_a_bound_memory_refuses_other_scopes(make: Make) -> None:
    memory = make(user_id="ann")
    memory.add("mine", run_id=1)
    assert memory.get_all()["results"][0]["user_id"] == "ann"
    assert memory.search("mine", user_id="ann", run_id=1)["results"]
    assert memory.search("mine", run_id=2)["results"] == []
    assert memory.search("mine", filters={"user_id": "ann"})["results"]
    assert memory.search("mine", filters={"AND": [{"user_id": "bob"}]})["results"] == []
    assert memory.search("mine", filters={"OR": [{"user_id": "bob"}, {"user_id": "ann"}]})["results"]
    for call in (
        lambda: memory.search("mine", user_id="bob"),
        lambda: memory.search("mine", filters={"user_id": "bob"}),
        lambda: memory.get_all(filters={"user_id": 7}),
        lambda: memory.add("mine", user_id="bob"),
        lambda: memory.delete_all(user_id="bob"),
        lambda: memory.get_all(user_id="bob"),
        memory.reset,
    ):
        with pytest.raises(InputError, match="opened for"):
            call()


def test_only_known_ids_are_known(make: Make) -> None:
    memory = make()
    make(user_id="ann").check_known()  # nobody is unknown to an empty memory
    memory.add("tea", user_id="ann", agent_id="bot")
    memory.check_known()
    make(user_id="ann").check_known()
    make(agent_id="bot").check_known()
    for ids in ({"user_id": "ana"}, {"user_id": "ann", "agent_id": "bob"}):
        with pytest.raises(InputError, match="nothing was ever added for"):
            make(**ids).check_known()
    gone = memory.add("coffee", user_id="eve")["results"][0]["id"]
    memory.delete(gone)
    make(user_id="eve").check_known()  # she has deleted what she had


def test_a_call_without_a_scope_is_refused(memory: Memory) -> None:
    memory.add("text", user_id="ann")
    for filters in (None, {}, {"a": 1}, {"user_id": {"ne": "bob"}}, {"OR": [{"user_id": "ann"}, {"a": 1}]}):
        with pytest.raises(InputError, match="name a scope"):
            memory.search("text", filters=filters)
        with pytest.raises(InputError, match="name a scope"):
            memory.get_all(filters=filters)
    memory.add("another's", agent_id="bot")
    memory.add("a session's", run_id="r")
    for listed in ([None], ["ann", None], [], {"in": ["ann", None]}, {"in": []}):
        for filters in ({"user_id": listed}, {"OR": [{"agent_id": "bot"}, {"user_id": listed}]}):
            with pytest.raises(InputError, match="name a scope"):
                memory.get_all(filters=filters)
    for any_of in ({"user_id": "*"}, {"OR": [{"agent_id": "bot"}, {"user_id": "*"}]}, {"NOT": [{"user_id": "ann"}]}):
        with pytest.raises(InputError, match="name a scope"):
            memory.search("text", filters=any_of)
    memory.add("in a session", user_id="ann", run_id="r")
    named = memory.get_all(filters={"AND": [{"user_id": "ann"}, {"run_id": "*"}]})["results"]
    assert [found["memory"] for found in named] == ["in a session"]
    assert memory.within(Scope(user_id="ann")).get_all(filters={"run_id": "*"})["results"] == named
    assert memory.search("text", user_id="*")["results"] == [], "an id is a name, not a pattern"
