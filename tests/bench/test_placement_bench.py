"""The benchmark of placements, small: the arms find the same, and held lists are those that were predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import batches, tail_hits
from bench.placement import States, index_of, question, work
from edge.budget import MemoryBudget
from edge.ivf import placement
from edge.trace import Trace


def test_arms_find_the_same_and_what_was_predicted_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_PERIOD", 16)
    monkeypatch.setattr(placement, "_REST", 0)
    made, folder = index_of(tmp_path, 2_000, None, 40, 50)
    task = {
        "set": str(made.folder), "folder": str(folder), "seconds": 0.5, "warmup": 32, "within": 0.001,
        "memory": 8 << 20, "bandwidth": 4e7, "prefill": 1e8, "state": 20_000, "nprobe": 4, "exponent": 1.0,
        "rate": 60.0,
    }  # fmt: skip
    arms = [work(task | arm) for arm in ({}, {"placed": True}, {"share": 0.5})]
    assert arms[0]["found"] == arms[1]["found"] == arms[2]["found"]
    assert all(len(ids) == 10 for ids in arms[0]["found"])
    assert arms[0]["held"] == 0
    assert arms[1]["held"] > 0
    assert arms[1]["of_held"] == pytest.approx(arms[1]["expected"], abs=0.3)
    assert (question(made.queries, 3, 7) == question(made.queries, 3, 7)).all()


def test_batches_find_what_single_searches_find(tmp_path: Path) -> None:
    made, folder = index_of(tmp_path, 2_000, None, 40, 50)
    task = {
        "set": str(made.folder), "folder": str(folder), "searches": 40, "memory": 8 << 20, "bandwidth": 4e6,
        "nprobe": 4, "exponent": 1.0, "clients": 8,
    }  # fmt: skip
    apart, together = (batches.work(task | {"together": arm}) for arm in (False, True))
    assert apart["found"] == together["found"]
    assert apart["rate"] > 0
    assert apart["p50"] <= apart["p95"]


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


def test_the_smallest_of_a_batch_is_that_of_many_draws() -> None:
    random = np.random.default_rng(0)
    rates = np.sort(random.beta(2.0, 3.0, 400))
    for batch in (1, 3, 8):
        draws = random.choice(rates, (100_000, batch)).min(axis=1).mean()
        assert tail_hits.smallest(rates, batch) == pytest.approx(draws, abs=0.005)
        drawn = random.beta(2.0, 3.0, (100_000, batch)).min(axis=1).mean()
        assert tail_hits.beta_smallest(0.4, 0.04, batch) == pytest.approx(drawn, abs=0.005)
    assert tail_hits.beta_smallest(1.0, 0.0, 8) == 1.0
