"""The benchmark of placements, small: the arms find the same, and held lists are those that were predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import placement as benchmark
from bench.placement import States, index_of, question, work
from edge.budget import MemoryBudget
from edge.ivf import placement
from edge.trace import Trace


def test_arms_find_the_same_and_what_was_predicted_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_PERIOD", 16)
    monkeypatch.setattr(placement, "_REST", 0)
    monkeypatch.setattr(benchmark, "_PASSING", 100_000)
    made, folder = index_of(tmp_path, 2_000, None, 40, 50)
    task = {
        "set": str(made.folder), "folder": str(folder), "seconds": 0.5, "warmup": 32, "within": 0.02,
        "search_within": 0.01, "memory": 8 << 20, "bandwidth": 4e6, "prefill": 1e8, "state": 20_000, "nprobe": 4,
        "rate": 60.0,
    }  # fmt: skip
    monkeypatch.setattr(benchmark.plan, "LOSS", -1.0)
    arms = [work(task | arm) for arm in ({}, {"placed": True}, {"share": 0.5}, {"share": 0.0, "passing": True})]
    cut = work(task | {"placed": True, "loss": 1.0, "search_within": 1e-9})
    assert [len(ids) for ids in cut["found"]] == [10] * len(cut["found"])
    assert 0 < cut["cut"] <= 3
    assert all(arm["cut"] == 0 for arm in arms)
    assert all(arm["found"] == arms[0]["found"] for arm in arms)
    assert arms[3]["read"] > arms[0]["read"]
    assert all(len(ids) == 10 for ids in arms[0]["found"])
    assert arms[0]["held"] == 0
    assert arms[1]["held"] > 0
    assert arms[1]["of_held"] == pytest.approx(arms[1]["expected"], abs=0.3)
    assert (question(made.queries, 3, 7) == question(made.queries, 3, 7)).all()


def test_states_take_what_is_free() -> None:
    budget = MemoryBudget(100_000, part=True)
    states = States(budget, 30_000, 1e9, Trace())
    for topic in (0, 1, 2, 3, 3, 0):
        states.use(topic)
    assert 30_000 <= budget.used <= 100_000
    with budget.reserve("all", 100_000):
        states.use(4)
    states.close()
    assert budget.used == 0
