"""Stage rates: found again from exact times, never negative, and as good as any others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from naive.index import SMALL, IndexRig, mixture

from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import DEVIATIONS, Codec, Parameters
from edge.ivf.maintenance.work import VectorSource
from edge.ivf.storage.manifest import IndexManifest
from edge.tuning.sampled import CodecKey, Sampled
from edge.tuning.stage_costs import Load, StageCosts, prepare_of, queue_places, scan_of, small_sizes

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
    known = StageCosts(RATES, 0.0)
    found = StageCosts.fitted(loads(), [known.seconds(load) for load in loads()])
    assert found.error < 1e-6
    for name, rate in RATES.items():
        assert found.rates[name] == pytest.approx(rate, rel=1e-4), name


def test_exact_codes_are_not_scored_again() -> None:
    assert next(load for load in loads() if load.codec[0] == "flat").amounts()["rescoring"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_rates_above_zero_fit_noisy_times_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = [StageCosts(RATES, 0.0).seconds(load) * random.uniform(0.6, 1.4) for load in loads()]
    found = StageCosts.fitted(loads(), times)

    def wrong(rates: dict[str, float]) -> float:
        costs = StageCosts(rates, 0.0)
        return sum((costs.seconds(load) / time - 1) ** 2 for load, time in zip(loads(), times, strict=True))

    best = wrong(dict(found.rates))
    assert min(found.rates.values()) >= 0
    for name, rate in found.rates.items():  # the error is convex: where no small step helps, no step does
        for other in (rate * 1.01 + 1e-12, max(0.0, rate * 0.99 - 1e-12)):
            assert wrong({**found.rates, name: other}) >= best * (1 - 1e-9), name
    assert found.error == pytest.approx(
        max(abs(found.seconds(load) / time - 1) for load, time in zip(loads(), times, strict=True))
    )


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


def test_a_surer_sample_has_a_smaller_error(case: Case) -> None:
    rare = case.sampled.expected(Parameters(20, "flat", 32, 1), 1)
    all_of_them = case.sampled.expected(Parameters(20, "flat", 32, 1), 20)
    assert rare.sure < rare.recall < 1
    assert all_of_them.sure == all_of_them.recall == 1
