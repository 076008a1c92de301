"""The vectors an index is measured with, their exact answers, and peers that are not installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.program import output_of

from bench import index as bench
from bench.index import work
from bench.vectors import NEIGHBOURS, VectorSet
from edge.errors import CapabilityError, InputError


@pytest.mark.parametrize("real", [True, False])
def test_a_set_is_made_once_with_its_exact_answers(tmp_path: Path, real: bool) -> None:
    base = None
    if real:
        vectors = np.random.default_rng(1).standard_normal((60, 12)).astype(np.float32)
        base = tmp_path / "base.npy"
        np.save(base, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    made = VectorSet.made(tmp_path / "set", rows=300, queries=5, base=base)
    assert ("real embeddings" in made.kind) == real
    rows = np.concatenate([block for _, block in made.blocks()])
    assert rows.shape == (300, made.dim)
    assert np.array_equal(rows, made.mapped())
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(300), abs=1e-5)
    for query, truth in zip(made.queries, made.truth, strict=True):
        assert set(np.argsort(-(rows @ query))[:NEIGHBOURS].tolist()) == set(truth.tolist())
    written = made.path.stat().st_mtime_ns
    assert VectorSet.made(tmp_path / "set", rows=300, queries=5, base=base) == made
    assert made.path.stat().st_mtime_ns == written
    with pytest.raises(InputError, match="another set"):
        VectorSet.made(tmp_path / "set", rows=301, queries=5, base=base)


def test_enough_real_embeddings_are_the_rows_themselves(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((60, 12)).astype(np.float32)
    np.save(tmp_path / "base.npy", vectors)
    made = VectorSet.made(tmp_path / "set", rows=50, queries=5, base=tmp_path / "base.npy")
    assert np.array_equal(made.mapped(), vectors[:50])
    assert np.array_equal(made.queries, vectors[55:])
    assert "noise" not in made.kind


def test_a_changed_index_holds_the_last_rows_and_no_others(tmp_path: Path) -> None:
    vectors = VectorSet.made(tmp_path / "set", rows=900, queries=6, base=None)
    task = {
        "set": str(vectors.folder), "index": str(tmp_path / "index"), "memory": 10**11, "codec": "auto", "recall": 0.95,
        "nprobe": None, "cold": 0, "changed": 90, "end": 810,
    }  # fmt: skip
    (tmp_path / "index").mkdir()
    assert work(task | {"action": "build"})["rows"] == 810
    assert work(task | {"action": "change"})["rows"] == 810
    found = work(task | {"action": "search"})["ids"]
    for ids, truth in zip(found, vectors.neighbours(90).tolist(), strict=True):
        assert set(ids) == set(truth)
        assert min(ids) >= 90


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(worker: Any, task: dict[str, Any], **options: Any) -> dict[str, Any]:
        if task["name"] == "usearch":
            raise CapabilityError("No module named 'usearch'")
        return real(worker, task, **options)

    real = bench.measure
    monkeypatch.setattr(bench, "measure", measured)
    report = json.loads(
        output_of(
            bench.index, "--rows", "900", "--queries", "8", "--cold", "1", "--memory", "4GB", "--systems",
            "edge,usearch", "--window", "0.01", "--lookahead", "disk", "--work-dir", str(tmp_path), "--json",
        )
    )  # fmt: skip
    assert list(report["systems"]) == ["edge"]
    assert report["missing"] == {"usearch": "usearch was left out: No module named 'usearch'."}
    assert report["systems"]["edge"]["recall"] > 0.9
    assert report["lookahead"]["disk"]["same"]
