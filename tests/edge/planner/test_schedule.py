"""The pruned search finds the same schedules as a trial of every schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from naive.planning import evaluate, exhaustive, one_device
from naive.published_rago import PUBLISHED

from edge.errors import InputError, RangeError
from edge.planner import schedule, tables
from edge.planner.schedule import Problem, cluster_placements, plans, stall_factor
from edge.planner.tables import ACCELERATORS, MODELS, Point, RagSchema, StageTable, frontier, modelled_tables

XPU = ACCELERATORS["xpu-c"]


def published(name: str, chips: list[int], batches: list[int], servers: list[int], *, most: int = 128) -> Problem:
    schema = PUBLISHED[name]
    tables = modelled_tables(schema, XPU, chips=chips, servers=servers, batches=batches)
    return Problem(schema, tables, cluster_placements(schema), most, XPU.memory)


CASES = {
    "hyperscale": published("case-1", [1, 16, 64], [1, 32, 256], [16, 32]),
    "long context": published("case-2", [16, 64], [1, 16, 128], [1, 4]),
    "iterative": published("case-3", [8, 64], [1, 4, 64], [16]),
    "rewriter and reranker": published("case-4", [4, 32], [1, 32], [16]),
    "too few devices for some": published("case-4", [8, 64], [8], [16], most=80),
}


def costs(found: list[tuple[float, ...]]) -> np.ndarray:
    return np.array(sorted(tuple(round(value, 12) for value in row) for row in found))


@pytest.mark.parametrize("case", CASES)
def test_the_search_equals_trying_every_schedule(case: str) -> None:
    problem = CASES[case]
    ours, theirs = plans(problem), exhaustive(problem)
    assert len(ours) == len(theirs) > 1
    np.testing.assert_allclose(
        costs([plan.outcome.objectives for plan in ours]), costs([o.objectives for _, o in theirs]), rtol=1e-9
    )
    for plan in ours:
        found = evaluate(problem, plan.schedule)
        assert plan.outcome.objectives == pytest.approx(found.objectives)
        assert (plan.outcome.devices, plan.outcome.interval) == (found.devices, pytest.approx(found.interval))


def random_problem(seed: int) -> Problem:
    """Three models on tables that obey no model of a device: latencies, intervals and bytes are drawn."""
    random = np.random.default_rng(seed)
    small = MODELS["llama-8b"]
    schema = RagSchema(
        "random", small, rewriter=small if seed % 2 else None, reranker=None if seed % 2 else MODELS["encoder-120m"],
        rewrites=int(random.integers(1, 4)), retrieval_frequency=float(random.choice([1, 3])),
    )  # fmt: skip
    tables = {}
    for stage in schema.stages():
        weights = {1: float(random.integers(1, 9)), 2: float(random.integers(1, 9))}
        points = tuple(
            Point(d, b, latency := float(random.integers(1, 40)), float(random.integers(1, latency + 1)), weights[d],
                  float(random.integers(0, 9)))
            for d in (1, 2) for b in (1, 2)
        )  # fmt: skip
        tables[stage.name] = StageTable(stage.name, points)
    places = [*cluster_placements(schema)[:2], *one_device(schema)]
    return Problem(schema, tables, places, 8, 14.0, memory=float(random.integers(25, 60)), per_server=1)


@pytest.mark.parametrize("seed", range(6))
def test_the_search_equals_trying_every_schedule_of_a_random_table(seed: int) -> None:
    """Shared weights, limits that bind, retrieval on servers or on the only device, and looping retrievals."""
    problem = random_problem(seed)
    theirs = exhaustive(problem)
    if not theirs:
        with pytest.raises(InputError, match="no schedule"):
            plans(problem)
        return
    ours = [plan.outcome.objectives for plan in plans(problem)]
    np.testing.assert_allclose(costs(ours), costs([o.objectives for _, o in theirs]), rtol=1e-9)


def test_a_memory_limit_is_kept_and_an_impossible_one_refused() -> None:
    problem = CASES["long context"]
    free = plans(problem)
    limit = sorted(plan.outcome.nbytes for plan in free)[len(free) // 2]
    limited = plans(replace(problem, memory=limit))
    assert max(plan.outcome.nbytes for plan in limited) <= limit < max(plan.outcome.nbytes for plan in free)
    with pytest.raises(InputError, match=r"no schedule of case-2 fits 128 devices of 96 GB and 1 MB in all"):
        plans(replace(problem, memory=1e6))


def test_whole_schedules_are_compared_in_the_objectives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their groups differ as well, many more of them stay. The search then takes minutes on many devices."""
    compared: list[int] = []

    def noted(costs: np.ndarray) -> np.ndarray:
        rows = frontier(costs)
        compared.append(len(costs) * len(rows))
        return rows

    monkeypatch.setattr(schedule, "frontier", noted)
    plans(published("case-4", [4, 16, 64, 256], [1, 8, 64, 512], [16, 32], most=512))
    assert sum(compared) < 10_000_000


def test_the_frontier_is_that_of_comparing_every_pair() -> None:
    random = np.random.default_rng(3)
    for columns in (1, 2, 4):
        rows = random.integers(0, 12, (700, columns)).astype(float)
        slow = {
            tuple(row) for row in rows.tolist()
            if not any(all(a <= b for a, b in zip(other, row, strict=True)) and other != row for other in rows.tolist())
        }  # fmt: skip
        found = [tuple(rows[i]) for i in frontier(rows)]
        assert set(found) == slow
        assert len(found) == len(slow)
    assert len(tables._hopeful(random.random((20_000, 4)))) < 10_000, "of many rows most are dropped by a few"


def test_nothing_waits_alone_and_batches_that_never_fill_are_refused() -> None:
    assert stall_factor(64, 1) == stall_factor(64, 8, retrievals=0) == 1.0
    with pytest.raises(RangeError, match="never fills"):
        stall_factor(4, 8)
    with pytest.raises(RangeError, match="no room"):
        stall_factor(4, 2, retrievals=9, tokens=8)
