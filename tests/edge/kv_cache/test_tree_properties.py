"""After any requests, evictions, damage and restarts: answers equal those without a cache, and the books balance."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from naive.knowledge import Rig, Twin, segment
from naive.kv import CELL, GridCosts
from naive.policies import POLICIES

from edge.errors import BudgetExceeded, ModelError

SYSTEM = segment("system", 10)
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


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Other tests check the files after a kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


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
