"""The pruned search for parameters chooses as a search over the whole grid does."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from edge.errors import InputError
from edge.ivf.base import Goal, Parameters
from edge.tuning.sampled import Expected
from edge.tuning.stage_costs import StageCosts, prepare_of, scan_of
from edge.tuning.tuner import (
    DEPTHS,
    ParameterChoice,
    choose,
    codecs_of,
    evaluated,
    lists_nbytes,
    numbers_of_lists,
    probes,
)

ROWS, DIM = 20_000, 64
CODECS = tuple(codecs_of(DIM, 256))
LISTS = (1, 16, 64, 256)
QUALITY = {"flat": 1.0, "sq8": 0.999, "pq": 0.8, "opq": 0.9}


class Made:
    """Recall that rises with lists, codes and depth, and differs from seed to seed."""

    rows = ROWS
    codecs = CODECS

    def __init__(self, seed: int) -> None:
        self.slope = np.random.default_rng(seed).uniform(0.5, 3)
        self.asked = 0

    def scanned(self, lists: int, nprobe: int) -> float:
        return ROWS * (1 - (1 - nprobe / lists) ** 1.2)

    def bound(self, lists: int, nprobe: int) -> float:
        return float(1 - (1 - nprobe / lists) ** (self.slope * lists**0.4))

    def expected(self, p: Parameters, nprobe: int) -> Expected:
        self.asked += 1
        found = QUALITY[p.codec] * p.code_size**0.02
        kept = 1.0 if p.codec == "flat" else min(1.0, found) ** (8 / p.rescore)
        recall = self.bound(p.lists, nprobe) * kept
        sure = recall if recall == 1 else recall - 0.004
        rescored = 0.0 if p.codec == "flat" else min(10.0 * p.rescore, self.scanned(p.lists, nprobe))
        return Expected(recall, sure, self.scanned(p.lists, nprobe), rescored)


def costs(seed: int) -> StageCosts:
    random = np.random.default_rng(seed)
    rates = {"query": 2e-4, "coarse quantizer": 3e-10, "lists": 6e-6, "queue": 2e-8, "rescoring": 2e-6}
    for codec in CODECS:
        rates |= {scan_of(codec): 2e-10 * codec[1] + 1e-8, prepare_of(codec): 2e-5}
    return StageCosts({name: rate * random.uniform(0.2, 5) for name, rate in rates.items()}, 0.0)


def naive(sampled: Any, rates: StageCosts, goal: Goal, room: int) -> ParameterChoice | None:
    """Every point of the grid, none left out."""
    every = [
        Parameters(lists, *key, depth)
        for lists, key, depth in product(LISTS, CODECS, DEPTHS)
        if (key[0] != "flat" or depth == 1) and (lists > 1 or key[0] == "flat")
    ]
    fitting = [p for p in every if lists_nbytes(ROWS, p.code_size) <= room]
    if not fitting and goal.nbytes is None:
        fitting = [p for p in every if p.code_size == min(p.code_size for p in every)]
    points = [[evaluated(sampled, rates, DIM, p, n) for n in probes(p.lists)] for p in fitting]
    found: list[ParameterChoice] = []
    for own in points:
        if goal.recall is None:
            found += own
        else:
            found += [c for c in own if c.expected.sure >= goal.recall - 1e-9][:1]  # the fewest lists that reach it
    found = [c for c in found if goal.seconds is None or c.seconds <= goal.seconds]
    if goal.recall is None:
        return min(found, key=lambda c: (-c.expected.sure, c.seconds), default=None)
    return min(found, key=lambda c: (c.seconds, c.nbytes), default=None)


GOALS = [
    Goal(recall=0.5), Goal(recall=0.8), Goal(recall=0.95), Goal(recall=1.0), Goal(seconds=4e-4), Goal(seconds=1e-3),
    Goal(recall=0.9, nbytes=lists_nbytes(ROWS, 70)), Goal(recall=0.6, nbytes=lists_nbytes(ROWS, 16)),
    Goal(recall=0.8, seconds=6e-4), Goal(seconds=1e-3, nbytes=lists_nbytes(ROWS, 20)), Goal(recall=0.999, seconds=1e-9),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("room", [10, lists_nbytes(ROWS, 100), 1 << 40])
def test_as_the_whole_grid(seed: int, goal: Goal, room: int) -> None:
    sampled: Any = Made(seed)
    room = goal.nbytes or room
    wanted = naive(Made(seed), costs(seed), goal, room)
    if wanted is None:
        with pytest.raises(InputError, match="no parameters"):
            choose(sampled, costs(seed), DIM, LISTS, goal, room)
        return
    found = choose(sampled, costs(seed), DIM, LISTS, goal, room)
    assert found.seconds == pytest.approx(wanted.seconds)
    assert (found.parameters, found.nprobe) == (wanted.parameters, wanted.nprobe)


def test_most_of_the_grid_is_never_computed() -> None:
    whole, pruned = Made(1), Made(1)
    goal = Goal(recall=0.9)
    naive(whole, costs(1), goal, 1 << 40)
    choose(pruned, costs(1), DIM, LISTS, goal, 1 << 40)  # type: ignore[arg-type]
    assert pruned.asked < whole.asked / 5


def test_a_byte_limit_that_no_codec_keeps_is_refused() -> None:
    goal = Goal(recall=0.5, nbytes=1000)
    with pytest.raises(InputError, match="the smallest needs 400,000"):
        choose(Made(0), costs(0), DIM, LISTS, goal, 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, "needs a goal"), ({"recall": 0.0}, "above 0"), ({"recall": 1.1}, "at most 1"),
        ({"recall": float("nan")}, "above 0"), ({"seconds": 0.0}, "above 0"), ({"seconds": float("inf")}, "above 0"),
        ({"recall": 0.5, "nbytes": 0}, "at least one byte"),
    ],
)  # fmt: skip
def test_wishes_out_of_range_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Goal(**values)


@pytest.mark.parametrize("rows", [200, 1000, 30_000, 10**6, 10**8])
def test_lists_that_are_tried(rows: int) -> None:
    tried = numbers_of_lists(rows, 77)
    assert tried[0] == 1
    assert 77 in tried
    assert all(lists * 8 <= rows for lists in tried if lists != 77)
    assert any(0.5 < lists / rows**0.5 < 2 for lists in tried)
    for lists in tried:
        numbers = list(probes(lists))
        assert (numbers[0], numbers[-1]) == (1, lists)
        assert numbers == sorted(set(numbers))


def test_codecs_fit_the_width() -> None:
    assert codecs_of(384, 256) == [("flat", 1536), ("sq8", 384), ("pq", 96), ("opq", 96), ("opq", 48)]
    assert codecs_of(12, 256) == [("flat", 48), ("sq8", 12), ("pq", 3), ("opq", 3)]
    assert codecs_of(7, 256) == [("flat", 28), ("sq8", 7)]
    assert codecs_of(8, 255) == [("flat", 32), ("sq8", 8)]
