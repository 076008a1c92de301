"""Samples are fair, and the measured recall is what a search by definition finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from naive.index import SMALL, IndexRig, mixture

from edge.ivf.maintenance import training
from edge.ivf.maintenance.training import NEARNESS, draw, measure, questions, sample
from edge.ivf.maintenance.work import VectorSource
from edge.ivf.storage.manifest import IndexManifest


def sources_of(rig: IndexRig) -> list[VectorSource]:
    with rig.database.read() as db:
        manifest = IndexManifest(db)
        segments = rig.index._snapshots.segments(manifest)
        return [VectorSource(segment, manifest.all_deleted_rows(name)) for name, segment in segments.items()]


def test_samples_are_of_rows_that_count_and_of_all_of_them_alike(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, flat_limit=1000))
    rig.add(range(60), mixture(60, rig.dim))
    rig.add(range(60, 90), mixture(30, rig.dim, seed=1))
    rig.delete([0, 1, 5, 59, 60, 61, 89, *range(20, 30)])
    sources = sources_of(rig)
    assert len(sources) == 2
    live = sorted(rig.twin.rows)
    seen: Counter[int] = Counter()
    for seed in range(400):
        ids = np.concatenate([part for part, _ in sample(sources, 20, seed)])
        assert len(set(ids.tolist())) == 20
        seen.update(ids.tolist())
    assert sorted(seen) == live
    expected = 400 * 20 / len(live)
    assert max(abs(count - expected) for count in seen.values()) < 6 * np.sqrt(expected)
    ids, vectors = (np.concatenate(part) for part in zip(*sample(sources, 10**6, 0), strict=True))
    assert sorted(ids.tolist()) == live
    np.testing.assert_array_equal(vectors, [rig.twin.rows[number] for number in ids.tolist()])
    assert list(draw(sources, 0, np.random.default_rng(0))) == []
    rig.close()


def test_stand_ins_are_as_far_from_rows_as_questions_are() -> None:
    rows = np.random.default_rng(1).standard_normal((50, 24)).astype(np.float32)
    made = questions(rows, 3)
    lengths = np.linalg.norm(rows, axis=1)
    assert np.linalg.norm(made, axis=1) == pytest.approx(lengths, rel=1e-4)
    assert np.einsum("ij,ij->i", made, rows) / lengths**2 == pytest.approx(np.full(50, NEARNESS), abs=1e-4)
    assert np.isfinite(questions(rows[:1], 3)).all()
    assert np.isfinite(questions(np.zeros((2, 24), np.float32), 3)).all()


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
def test_the_curve_is_the_recall_of_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(training, "BLOCK", 37)
    monkeypatch.setattr(training, "_GROUP", 7)
    monkeypatch.setattr(training, "QUERIES", 40)
    rig = IndexRig(tmp_path, options=replace(SMALL, codec=codec))
    rig.add(range(500), mixture(500, rig.dim, spread=0.8))
    rig.maintain()
    rig.add(range(600, 700), mixture(100, rig.dim, seed=1, spread=0.8))
    rig.delete(range(0, 500, 9))
    snapshot = rig.snapshot()
    sources = sources_of(rig)
    read: list[int] = []
    curve = measure(sources, snapshot.codec, snapshot.centroids, budget=rig.budget, seed=4, check=read.append)
    assert read[-1] == len(rig.twin.rows)
    queries = questions(np.concatenate([rows for _, rows in sample(sources, 40, 4)]), 4)
    everything = np.array(list(rig.twin.rows.values()))
    ids = np.array(list(rig.twin.rows))
    for nprobe, measured in curve:
        found = 0
        with rig.database.read() as db:
            for query in queries:
                true = set(ids[np.argsort(-(everything @ query))[:10]].tolist())
                found += len(true & set(rig.index.search(db, query[None], 10, nprobe=nprobe).ids[0].tolist()))
        # With PQ a neighbour may be kept where few lists are probed that all lists would crowd out.
        room = 0.03 if codec == "pq" else 0.002
        assert abs(found / 400 - measured) <= room, (nprobe, found / 400, measured)
    assert curve[0][1] < 0.7 < curve[-1][1]
    rig.close()
