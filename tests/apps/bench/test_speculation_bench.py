"""Stages are those of a search in parts, and what is guessed is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.apps.bench.random_gguf import RandomModel
from edge.apps.bench.speculation_worker import staged, work
from edge.apps.bench.vectors import VectorSet


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> VectorSet:
    return VectorSet.made(tmp_path_factory.mktemp("set"), rows=6000, queries=4, base=None)


def test_more_stages_find_better_documents(vectors: VectorSet) -> None:
    rows = vectors.mapped()
    for query, stages in zip(vectors.queries, staged(vectors, 3, 4), strict=True):
        sums = [float(np.sum(rows[ids] @ query)) for ids in stages]
        assert sums == sorted(sums)
        assert all(len(set(ids)) == 3 for ids in stages)


def test_guesses_are_served_and_none_while_the_engine_is_busy(vectors: VectorSet, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    task = {
        "model": str(RandomModel().write(tmp_path / "model.gguf")), "folder": str(tmp_path),
        "set": str(vectors.folder), "context": 256, "threads": 1, "memory": 1 << 33, "requests": 3,
        "shares": [0.0, 2.0], "documents": 2, "tokens": 20, "stages": 3,
    }  # fmt: skip
    report = work(task)
    assert report["settled"][-1] == 1.0
    assert [len(row["guessed"]) for row in report["rows"]] == [3, 3]
    assert report["rows"][1]["counters"]["started"] >= 3
    assert report["rows"][1]["counters"].get("agreed", 0) + report["rows"][1]["counters"].get("disagreed", 0) == 3
    assert report["busy"].get("started", 0) == 0
    assert report["busy"]["deferred"] >= 3
