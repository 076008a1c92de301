"""Faults around the knowledge tree: damage, failures, cancelling, limits, threads."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from naive.knowledge import Rig, segment
from naive.kv import CELL, GridCosts, uncached

from edge.errors import InputError, ModelError
from edge.kv_cache.backend import StateSegment
from edge.kv_cache.prefix_tree import Match
from edge.kv_cache.store import KnowledgeStore

SYSTEM = segment("system", 10)
A, B, C, D = (segment(name, 20) for name in "abcd")


def test_a_refused_or_damaged_state_is_computed_again(tmp_path: Path) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, A, B])
    states = rig.tree._states
    node = next(node for node in states.host if node.id == "a")
    states.host._entries[node].payload = b"not a state"
    states.host.used = sum(memoryview(states.host[n]).nbytes for n in states.host)
    states._give(CELL * 20 - 11)
    states.host._entries[node].nbytes = 11
    rig.ask([SYSTEM])
    assert rig.ask([SYSTEM, A, B]) == ["context", "nowhere", "host"], "what stands below it is still good"
    assert rig.count("corrupt") == 1
    rig.check()


def test_a_failure_before_the_first_token_is_tried_once_more() -> None:
    rig = Rig()
    rig.backend.failures = [1]
    assert rig.ask([SYSTEM, A]) == ["nowhere", "nowhere"]
    assert rig.count("retries") == 1
    rig.backend.failures = [0, 1]
    with pytest.raises(ModelError):
        rig.ask([SYSTEM, B])
    rig.backend.failures = []
    rig.check()
    assert rig.ask([SYSTEM, A])[1] == "host", "the context is free again"


def test_what_somebody_else_put_in_context_is_noticed() -> None:
    rig = Rig()
    rig.ask([SYSTEM, A])
    rig.backend.truncate(0)
    assert rig.ask([SYSTEM, A]) == ["host", "host"]


def test_a_cancelled_request_leaves_what_is_complete() -> None:
    rig = Rig(batch=5)
    asked: list[int] = []

    def cancelled(position: int) -> bool:
        asked.append(position)
        return len(asked) > 7

    with rig.tree.prepare([SYSTEM, A, B], cancelled=cancelled) as prepared:
        assert not prepared.complete
        assert prepared.computed == [10, 15], "in the fourth batch of the second segment it was stopped"
        assert rig.backend.length == 10
    assert asked == [0, 0, 0, 1, 1, 1, 1, 1]
    assert rig.count("wasted_tokens") == 15
    assert rig.ask([SYSTEM, A]) == ["context", "nowhere"]


def test_match_tells_where_a_path_is_and_changes_nothing(tmp_path: Path) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, A])
    rig.tree.close()
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, B])
    before = rig.trace.snapshot(), rig.host_nbytes, rig.tree.match([SYSTEM, B]), len(rig.nodes())
    assert rig.tree.match([SYSTEM, A, C]) == Match(context=10, host=0, disk=20, missing=20)
    assert rig.tree.match([SYSTEM, A, C]).cached == 30
    assert rig.tree.match([C, A]).missing == 40
    assert (rig.trace.snapshot(), rig.host_nbytes, rig.tree.match([SYSTEM, B]), len(rig.nodes())) == before
    rig.ask([SYSTEM])
    assert rig.tree.match([SYSTEM, B]).host == 20
    rig.check()


def test_too_long_a_prompt_is_refused_with_the_numbers() -> None:
    rig = Rig(capacity=40)
    with pytest.raises(InputError, match="41 tokens but the context holds 40"):
        rig.tree.prepare([SYSTEM, A], suffix=11)
    with pytest.raises(InputError, match="'empty' has no tokens"):
        rig.tree.prepare([SYSTEM, StateSegment("empty", ())])
    rig.check()
    assert rig.ask([SYSTEM, A]), "the context is free again"


def test_a_store_or_costs_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other"):
        Rig(costs=GridCosts("other", (0,), (1,), ((1.0,),)))
    rig = Rig()
    with pytest.raises(ValueError, match="KnowledgeStore of 'other'"):
        type(rig.tree)(rig.backend, rig.budget, host_limit=0, store=KnowledgeStore(tmp_path, "other", 10))


def test_a_full_disk_costs_states_and_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(host=CELL * 50, disk=10**6, folder=tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    rig.ask([SYSTEM, A, B])
    rig.ask([SYSTEM, C, D])
    assert rig.count("disk_errors") == 2
    assert rig.count("dropped") == 2
    assert list(tmp_path.glob("*/*")) == []
    rig.check()
    monkeypatch.undo()
    rig.ask([SYSTEM, A, B])
    assert rig.count("saved") == 2


def test_the_answer_of_a_plain_context_is_the_oracle() -> None:
    assert uncached([1, 2, 3]) != uncached([1, 3, 2])


def test_requests_pressure_and_questions_from_many_threads(tmp_path: Path) -> None:
    """The ledger asks the tree for memory from one thread while others serve, look and wait: nothing locks up."""
    rig = Rig(limit=40_000, host=CELL * 90, disk=6_000, folder=tmp_path)
    documents = [segment(f"d{i}", 10 + i) for i in range(6)]
    failed: list[BaseException] = []
    serving = threading.Event()
    serving.set()

    def guarded(work: Callable[[random.Random], None], seed: int, rounds: int) -> threading.Thread:
        def run() -> None:
            generator = random.Random(seed)
            try:
                for _ in range(rounds):
                    if serving.is_set():
                        work(generator)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def ask(generator: random.Random) -> None:
        rig.ask([SYSTEM, *generator.sample(documents, 2)])

    def press(generator: random.Random) -> None:
        rig.budget.reserve("other", generator.randrange(1, 3000)).release()

    def look(generator: random.Random) -> None:
        path = [SYSTEM, *generator.sample(documents, 2)]
        assert rig.tree.match(path).cached <= 10 + 2 * 15
        assert rig.host_nbytes >= 0

    threads = [guarded(ask, seed, 60) for seed in range(3)]
    others = [guarded(press, 7, 10**6), guarded(look, 8, 10**6)]
    for thread in threads:
        thread.join(60)
    serving.clear()
    for thread in others:
        thread.join(60)
    assert not any(thread.is_alive() for thread in (*threads, *others))
    assert not failed
    rig.check()


def test_saved_states_go_before_lists_and_lists_before_states_that_would_be_computed_again(tmp_path: Path) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, A])
    states = rig.tree._states
    lists: list[int] = []
    remove = rig.budget.add_shrinker("lists", lists.append, loss=1e-8)
    free = rig.budget.free
    rig.budget.make_room(free + 1)
    assert lists, "nothing is saved yet: lists are asked first"
    assert states.host.used < sum(CELL * n for n in (10, 20)), "they gave nothing"
    rig.ask([SYSTEM, A])
    for node in list(states.host):
        assert states.disk.save(node, states.host[node])
    lists.clear()
    rig.budget.make_room(rig.budget.free + 1)
    assert not lists, "reading a saved state again costs less than reading a list"
    remove()
