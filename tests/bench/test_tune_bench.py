"""`tune`: the choice and the sweep over a small set, their figures and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.tune import figures, work
from bench.vectors import NEIGHBOURS, VectorSet


def mixture(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    middle = np.random.default_rng(1).standard_normal((20, 8))
    rows = middle[random.integers(20, size=count)] + random.standard_normal((count, 8))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_choice_and_sweep(tmp_path: Path) -> None:
    made = VectorSet.given(tmp_path / "set", mixture(500, 2), mixture(80, 3), "some")
    assert made == VectorSet.stored(tmp_path / "set")
    assert set(made.truth[0].tolist()) == set(np.argsort(-(made.mapped() @ made.queries[0]))[:NEIGHBOURS].tolist())
    (tmp_path / "index").mkdir()
    report = work({
        "set": str(made.folder), "index": str(tmp_path / "index"), "memory": 10**10, "recalls": [0.7, 0.9],
        "timed": 2, "rounds": 1, "threads": 1,
    })  # fmt: skip
    assert (report["rows"], report["questions"], report["held_out"]) == (500, 40, 40)
    assert len(report["indexes"]) == 2
    for row, index in zip(report["goals"], report["indexes"], strict=True):
        assert row["sample_recall"] >= row["goal"]
        assert all(point["recall"] >= row["goal"] for point in row["sweep"])
        assert row["points"] == len(row["sweep"]) > 10
        assert row["ratio"] == row["chosen"]["seconds"] / row["fastest"]["seconds"] > 0
        assert row["fastest"]["parameters"] in [point["parameters"] for point in row["sweep"]]
        assert 0 < index["recall"] <= 1
        assert index["codec"] == row["chosen"]["parameters"]["codec"]
    found = list(figures(report | {"peak_resident": 7}))
    assert len({figure.key for figure in found}) == len(found) == 16
