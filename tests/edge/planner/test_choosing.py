"""The choice of parameters, and the seconds of each stage of a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from naive.index import SMALL, IndexRig, mixture

from edge.devices.faiss_codec import FaissCodecs
from edge.errors import InputError
from edge.ivf.base import DEVIATIONS, Codec, Goal, Parameters
from edge.ivf.maintenance.work import VectorSource
from edge.ivf.storage.manifest import IndexManifest
from edge.planner.candidates import (
    CodecKey,
    Expected,
    Load,
    Sampled,
    StageCosts,
    prepare_of,
    queue_places,
    scan_of,
    small_sizes,
)
from edge.planner.tuner import (
    DEPTHS,
    ParameterChoice,
    choose,
    codecs_of,
    evaluated,
    lists_nbytes,
    numbers_of_lists,
    probes,
)

EXPECTED_ROWS, DIM = 20_000, 64
CODECS = tuple(codecs_of(DIM, 256))
LISTS = (1, 16, 64, 256)
QUALITY = {"flat": 1.0, "sq8": 0.999, "pq": 0.8, "opq": 0.9}


class Made:
    """Recall that rises with lists, codes and depth, and differs from seed to seed."""

    rows = EXPECTED_ROWS
    codecs = CODECS

    def __init__(self, seed: int) -> None:
        self.slope = np.random.default_rng(seed).uniform(0.5, 3)
        self.asked = 0

    def scanned(self, lists: int, nprobe: int) -> float:
        return EXPECTED_ROWS * (1 - (1 - nprobe / lists) ** 1.2)

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
    return StageCosts({name: rate * random.uniform(0.2, 5) for name, rate in rates.items()})


def naive(sampled: Any, rates: StageCosts, goal: Goal, room: int) -> ParameterChoice | None:
    """Every point of the grid, none left out."""
    every = [
        Parameters(lists, *key, depth)
        for lists, key, depth in product(LISTS, CODECS, DEPTHS)
        if (key[0] != "flat" or depth == 1) and (lists > 1 or key[0] == "flat")
    ]
    fitting = [p for p in every if lists_nbytes(EXPECTED_ROWS, p.code_size) <= room]
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
    Goal(recall=0.9, nbytes=lists_nbytes(EXPECTED_ROWS, 70)), Goal(recall=0.6, nbytes=lists_nbytes(EXPECTED_ROWS, 16)),
    Goal(recall=0.8, seconds=6e-4), Goal(seconds=1e-3, nbytes=lists_nbytes(EXPECTED_ROWS, 20)),
    Goal(recall=0.999, seconds=1e-9),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("room", [10, lists_nbytes(EXPECTED_ROWS, 100), 1 << 40])
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


def test_most_of_the_grid_is_never_computed_and_a_byte_limit_that_no_codec_keeps_is_refused() -> None:
    whole, pruned = Made(1), Made(1)
    naive(whole, costs(1), Goal(recall=0.9), 1 << 40)
    choose(pruned, costs(1), DIM, LISTS, Goal(recall=0.9), 1 << 40)  # type: ignore[arg-type]
    assert pruned.asked < whole.asked / 5
    with pytest.raises(InputError, match="the smallest needs 400,000"):
        choose(pruned, costs(1), DIM, LISTS, Goal(recall=0.5, nbytes=1000), 1000)  # type: ignore[arg-type]


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
def test_lists_that_are_tried_and_codecs_that_fit_the_width(rows: int) -> None:
    tried = numbers_of_lists(rows, 77)
    assert tried[0] == 1
    assert 77 in tried
    assert all(lists * 8 <= rows for lists in tried if lists != 77)
    assert any(0.5 < lists / rows**0.5 < 2 for lists in tried)
    for lists in tried:
        numbers = list(probes(lists))
        assert (numbers[0], numbers[-1]) == (1, lists)
        assert numbers == sorted(set(numbers))
    assert codecs_of(384, 256) == [("flat", 1536), ("sq8", 384), ("pq", 96), ("opq", 96), ("opq", 48)]
    assert codecs_of(12, 256) == [("flat", 48), ("sq8", 12), ("pq", 3), ("opq", 3)]
    assert codecs_of(7, 256) == [("flat", 28), ("sq8", 7)]
    assert codecs_of(8, 255) == [("flat", 32), ("sq8", 8)]


SQ8, PQ = ("sq8", 64), ("pq", 16)


def loads() -> list[Load]:
    """Searches that differ in every stage."""
    made = []
    for codec, lists, probed, depth in product((SQ8, PQ, ("flat", 256)), (16, 128), (1, 5, 16), (2, 8)):
        rows = 40.0 * probed + 13 * depth
        queue = queue_places(depth, exact=codec[0] == "flat")
        made.append(Load(codec, 64, lists, probed, rows, queue, 7.0 * depth + probed))
    return made


RATES = {
    "query": 2e-4, "coarse quantizer": 3e-9, "lists": 4e-6, "queue": 2e-8, "rescoring": 1e-6, scan_of(SQ8): 5e-8,
    scan_of(PQ): 3e-8, scan_of(("flat", 256)): 6e-8, prepare_of(SQ8): 1e-5, prepare_of(PQ): 5e-5,
}  # fmt: skip


def test_rates_are_found_from_the_times_that_they_make() -> None:
    known = StageCosts(RATES)
    found = StageCosts.fitted(loads(), [known.seconds(load) for load in loads()])
    for name, rate in RATES.items():
        assert found.rates[name] == pytest.approx(rate, rel=1e-4), name
    exact = next(load for load in loads() if load.codec[0] == "flat")
    assert exact.amounts()["rescoring"] == 0, "exact codes are not scored again"


@pytest.mark.parametrize("seed", range(5))
def test_no_rates_above_zero_fit_noisy_times_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = [StageCosts(RATES).seconds(load) * random.uniform(0.6, 1.4) for load in loads()]
    found = StageCosts.fitted(loads(), times)

    def wrong(rates: dict[str, float]) -> float:
        costs = StageCosts(rates)
        return sum((costs.seconds(load) / time - 1) ** 2 for load, time in zip(loads(), times, strict=True))

    best = wrong(dict(found.rates))
    assert min(found.rates.values()) >= 0
    for name, rate in found.rates.items():  # the error is convex: where no small step helps, no step does
        for other in (rate * 1.01 + 1e-12, max(0.0, rate * 0.99 - 1e-12)):
            assert wrong({**found.rates, name: other}) >= best * (1 - 1e-9), name


@pytest.mark.parametrize(
    ("available", "rows", "expected"),
    [
        ([4, 8, 16, 32, 50], 320, [16, 32]),
        ([32, 64, 128, 256, 512], 16_384, [32, 256]),
        ([512, 1024, 2048], 16_384, [512, 1024]),
        ([4], 320, [4]),
        ([256, 512], 1024, [256]),
        ([64, 200], 16_384, [64, 200]),
    ],
)
def test_two_sizes_wherever_there_is_a_choice(available: list[int], rows: int, expected: list[int]) -> None:
    assert small_sizes(available, rows) == expected


KEYS = [("flat", 32), ("sq8", 8), ("pq", 2), ("opq", 2)]
ROWS = 300
"""Fewer than the rows that are kept of each query, so that none is missing."""


@dataclass
class Case:
    """Everything that a naive search needs."""

    sampled: Sampled
    vectors: np.ndarray
    queries: np.ndarray
    centroids: dict[int, np.ndarray]
    codecs: dict[CodecKey, Codec]

    def searched(self, p: Parameters, nprobe: int) -> tuple[float, float, float]:
        """Recall, rows scanned and rows scored exactly, by definition."""
        codec = self.codecs[p.codec, p.code_size]
        coded = codec.decode(codec.encode(self.vectors))
        hits, rows, rescored = [], [], []
        for query in self.queries:
            exact = self.vectors @ query
            true = set(np.argsort(-exact)[:10].tolist())
            probed = np.arange(len(self.vectors))
            if p.lists > 1:
                centroids = self.centroids[p.lists]
                nearest = np.argsort(-(centroids @ query), kind="stable")[:nprobe]
                probed = np.flatnonzero(np.isin((self.vectors @ centroids.T).argmax(axis=1), nearest))
            rows.append(len(probed))
            if codec.spec.exact:
                hits.append(len(true & set(probed.tolist())))
                rescored.append(0)
                continue
            order = probed[np.argsort(-(coded[probed] @ query), kind="stable")][: p.rescore * 10]
            scores = coded[order] @ query
            if len(order) > 10:
                order = order[scores >= scores[9] - 2 * DEVIATIONS * codec.deviation(query)]
            hits.append(len(true & set(order.tolist())))
            rescored.append(len(order))
        return float(np.mean(hits)) / 10, float(np.mean(rows)), float(np.mean(rescored))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    rig = IndexRig(tmp_path_factory.mktemp("index"), options=replace(SMALL, flat_limit=1000))
    vectors = mixture(ROWS + 40, rig.dim)
    rig.add(range(200), vectors[:200])
    rig.add(range(200, ROWS + 40), vectors[200:])
    rig.delete(range(100, 140))
    with rig.database.read() as db:
        manifest = IndexManifest(db)
        segments = rig.index._snapshots.segments(manifest)
        sources = [VectorSource(segment, manifest.all_deleted_rows(name)) for name, segment in segments.items()]
    live = np.array([rig.twin.rows[number] for number in sorted(rig.twin.rows)])
    codecs = FaissCodecs(threads=1)
    opened = {key: codecs.open(codecs.train(key[0], live, seed=1, code_size=key[1])) for key in KEYS}
    centroids = {n: codecs.cluster(live.astype(np.float16), n, iterations=5, seed=1) for n in (4, 20)}
    queries = mixture(50, rig.dim, seed=7)
    read: list[int] = []
    sampled = Sampled(sources, queries, centroids, opened, budget=rig.budget, check=read.append)
    assert sampled.rows == ROWS == read[-1]
    assert rig.budget.holders().get("index tuning", 0) == 0
    yield Case(sampled, live, queries, centroids, opened)
    rig.close()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("lists", "nprobe"), [(1, 1), (4, 1), (4, 4), (20, 1), (20, 3), (20, 9)])
@pytest.mark.parametrize("depth", [1, 4])
def test_recall_and_work_are_those_of_a_search(case: Case, key: CodecKey, lists: int, nprobe: int, depth: int) -> None:
    parameters = Parameters(lists, *key, depth)
    expected = case.sampled.expected(parameters, nprobe)
    recall, rows, rescored = case.searched(parameters, nprobe)
    # The last digits of a score depend on the number of rows it is computed with, and decide between near rows.
    assert expected.recall == pytest.approx(recall, abs=0.004)
    assert expected.rows == case.sampled.scanned(lists, nprobe) == pytest.approx(rows)
    assert expected.rescored == pytest.approx(rescored, rel=0.01)
    assert expected.recall <= case.sampled.bound(lists, nprobe) + 1e-9
    assert expected.sure <= expected.recall
    assert (expected.sure < expected.recall) == (expected.recall < 1), "what is certain has no error"
