"""The recall and the work computed from one pass are those of a search by definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from naive.index import SMALL, IndexRig, mixture

from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import DEVIATIONS, Codec, Parameters
from edge.ivf.maintenance.work import VectorSource
from edge.ivf.storage.manifest import IndexManifest
from edge.tuning.sampled import CodecKey, Sampled

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
