"""Faults around the knowledge tree: damage, failures, cancelling, limits, threads."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from naive.knowledge import Rig, Twin, segment
from naive.kv import CELL, GridCosts
from naive.policies import POLICIES

from edge.errors import BudgetExceeded, InputError, ModelError
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


def test_too_long_a_prompt_and_what_is_of_another_model_are_refused(tmp_path: Path) -> None:
    rig = Rig(capacity=40)
    with pytest.raises(InputError, match="41 tokens but the context holds 40"):
        rig.tree.prepare([SYSTEM, A], suffix=11)
    with pytest.raises(InputError, match="'empty' has no tokens"):
        rig.tree.prepare([SYSTEM, StateSegment("empty", ())])
    rig.check()
    assert rig.ask([SYSTEM, A]), "the context is free again"
    rig.backend.truncate(0)
    assert rig.ask([SYSTEM, A]) == ["host", "host"], "what somebody else did to the context is noticed"
    with pytest.raises(ValueError, match="KnowledgeStore of 'other'"):
        type(rig.tree)(rig.backend, rig.budget, host_limit=0, store=KnowledgeStore(tmp_path, "other", 10))
    with pytest.raises(ValueError, match="other"):
        Rig(costs=GridCosts("other", (0,), (1,), ((1.0,),)))


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


POOL = [segment(f"d{i}", 3 + 2 * i) for i in range(6)]

path_of = st.lists(st.integers(0, len(POOL) - 1), max_size=3, unique=True).map(
    lambda chosen: [SYSTEM, *(POOL[i] for i in chosen)]
)
event = st.one_of(
    st.tuples(st.just("ask"), path_of),
    st.tuples(st.just("ask"), path_of),
    st.tuples(st.just("cancel"), path_of, st.integers(0, 6)),
    st.tuples(st.just("fail"), path_of, st.integers(0, 2), st.booleans()),
    st.tuples(st.just("press"), st.integers(1, 6000)),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("damage"), st.integers(0, 10**6), st.sampled_from(["flip", "cut", "gone", "grow"])),
)


def damage(folder: Path, place: int, how: str) -> None:
    files = sorted(folder.glob("*/*"))
    if not files:
        return
    path = files[place % len(files)]
    data = bytearray(path.read_bytes())
    if how == "flip" and data:
        data[place % len(data)] ^= 1 << (place % 8)
    elif how == "cut":
        del data[place % (len(data) + 1) :]
    elif how == "grow":
        data += b"x"
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(event, max_size=25),
    host=st.integers(0, 900),
    disk=st.one_of(st.none(), st.integers(0, 4000)),
    policy=st.sampled_from(sorted(POLICIES)),
    limit=st.sampled_from([7_000, 10_000, 16_000, 24_000, 10**6]),
    fixed=st.sampled_from([0, 30]),
    behind=st.booleans(),
)
@example(  # a state is cut off on disk before the system is asked to read it ahead
    events=[("ask", [SYSTEM, POOL[4], POOL[2]]), ("ask", [SYSTEM]), ("damage", 0, "cut"),
            ("ask", [SYSTEM, POOL[4], POOL[2]])],
    host=0, disk=1150, policy="lfu", limit=7_000, fixed=0, behind=False,
)  # fmt: skip
@example(  # two states should be on disk before they leave memory, and the disk has room for one of them
    events=[("ask", [SYSTEM, POOL[0]]), ("ask", [SYSTEM, POOL[0]]), ("ask", [SYSTEM, POOL[1]])],
    host=270, disk=569, policy="lru", limit=16_000, fixed=0, behind=True,
)  # fmt: skip
def test_whatever_happens_answers_equal_those_without_a_cache(
    events: list[tuple[Any, ...]], host: int, disk: int | None, policy: str, limit: int, fixed: int,
    behind: bool,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = None if disk is None else Path(name)

        def rig() -> Rig:
            return Rig(
                limit=limit, host=host, disk=disk or 0, folder=folder, policy=POLICIES[policy], fixed=fixed,
                behind=behind,
            )  # fmt: skip

        now = rig()
        damaged = False
        for kind, *details in events:
            try:
                if kind == "ask":
                    now.ask(details[0])
                elif kind == "cancel":
                    calls = iter(range(10**6))
                    stop = lambda _, calls=calls, last=details[1]: next(calls) >= last  # noqa: E731
                    now.tree.prepare(details[0], cancelled=stop).release()
                elif kind == "fail":
                    now.backend.failures = [details[1], details[1] + 1] if details[2] else [details[1]]
                    now.ask(details[0])
                elif kind == "press":
                    with now.budget.reserve("other", min(details[0], now.budget.free + now.host_nbytes)):
                        now.check(files=not damaged)
                elif kind == "reopen":
                    now.tree.close(save=details[0])
                    assert now.budget.used == 0
                    damaged = False
                    now = rig()
                elif folder is not None:
                    damage(folder, *details)
                    damaged = True
            except ModelError:
                assert kind == "fail", "one failure is made up for"
                assert details[2], "one failure is made up for"
            except BudgetExceeded:
                assert limit < 24_000
                if kind == "reopen":
                    return  # the index of the stored states does not fit
            now.backend.failures = []
            now.check(files=not damaged)
        now.tree.close()
        assert now.budget.used == 0


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    paths=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), max_size=30),
    host=st.integers(0, 900),
    disk=st.one_of(st.none(), st.integers(0, 4000)),
)
def test_pgdsf_keeps_what_the_rules_say(paths: list[list[int]], host: int, disk: int | None) -> None:
    costs = GridCosts("fake", (0, 40), (1, 60), ((1.0, 90.0), (2.0, 130.0)))
    by_name = {s.id: s for s in [SYSTEM, *POOL]}

    def tokens(name: str) -> int:
        return len(by_name[name].tokens)

    with tempfile.TemporaryDirectory() as name:
        rig = Rig(host=host, disk=disk or 0, folder=None if disk is None else Path(name), costs=costs)

        def sizes(names: tuple[str, ...]) -> tuple[int, int]:
            state = CELL * tokens(names[-1])
            if rig.store is None:
                return state, 1
            node = rig.tree._states.enter([(n, np.asarray(by_name[n].tokens, np.int32).tobytes()) for n in names])[-1]
            size = rig.store.file_nbytes(node, state)
            rig.tree._states.leave(node.path())
            return state, size

        twin = Twin(host, disk or 0, sizes, costs.estimate)
        for chosen in paths:
            path = [SYSTEM, *(POOL[i] for i in chosen)]
            places = rig.ask(path, question=(1, 2, 3))
            assert places == twin.ask([s.id for s in path], tokens, suffix=3)
            assert rig.held() == twin.held()
        rig.tree.close()
