"""`codecs` on few vectors: all search the same lists, and exact rescoring of all rows finds all that lie there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.codecs import figures, work
from bench.vectors import VectorSet


def test_recall_of_the_same_lists(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    vectors = VectorSet.made(tmp_path / "vectors", rows=1500, queries=8, base=None)
    task: dict[str, Any] = {"set": str(vectors.folder), "lists": 6, "nprobe": 3, "pools": [20, 1500], "threads": 1}
    found = work(task | {"systems": ["sq8", "rabitq", "rabitq-residual", "rabitq2"]})
    assert 0.3 < found["in_lists"] <= 1
    rows = found["codecs"]
    assert {name: row["code"] for name, row in rows.items()} == {
        "sq8": 384.0, "rabitq": 56.0, "rabitq-residual": 56.0, "rabitq2": 116.0,
    }  # fmt: skip
    for row in rows.values():
        assert row["recall-1500"] == pytest.approx(found["in_lists"])
        assert row["recall-20"] <= row["recall-1500"]
    assert rows["sq8"]["recall-20"] > 0.9 * found["in_lists"]
    assert {figure.row for figure in figures(rows, [20, 1500])} == set(rows)
