"""The figures that the larger benchmarks store: every measured row is there, and peers are marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench import gpu, index, memory
from bench.figures import Figure


def named(figures: Iterable[Figure]) -> dict[tuple[str, str, str], Figure]:
    """The figures by table, row and column, which are all different."""
    found = list(figures)
    by_key = {figure.key: figure for figure in found}
    assert len(by_key) == len(found) > 0
    return by_key


def test_an_index_and_its_peers() -> None:
    report = {
        "ids": [[1, 2]], "cold": [0.2], "warm": [0.1, 0.3], "peak_resident": 10, "peak_with_files": 20, "nbytes": 30,
        "nprobe": 4,
    }  # fmt: skip
    row = index._row(report, np.array([[1, 3]]))
    window = index._window({
        "stall": {"demand": [0.2], "lookahead": [0.1]}, "seconds": {"demand": [0.5], "lookahead": [0.4]},
        "overlap": 0.75, "fetched": [1], "same": True, "within": True, "peak_resident": 1,
    })  # fmt: skip
    found = named(index.figures({
        "built": {"seconds": 2.0, "peak_resident": 5}, "systems": {"edge": row, "faiss-ram": row},
        "churn": {"rows": 3, "fresh": row, "changed": row}, "lookahead": {"disk": window},
    }))  # fmt: skip
    assert {key[:2] for key in found} >= {
        ("building", "edge"), ("searching", "edge"), ("searching", "faiss-ram"), ("lookahead by device", "disk"),
    }  # fmt: skip
    assert found["searching", "edge", "recall@10"].rounds == (0.5,)
    assert found["searching", "edge", "warm p50"].median == 0.2
    assert {figure.row for figure in found.values() if figure.peer} == {"faiss-ram"}


def test_memories_with_their_rounds() -> None:
    def run(milliseconds: float, rows: int) -> dict[str, Any]:
        return {t: {"p50": milliseconds, "p95": 9.0} for t in memory._TIMES} | {"rows": rows, "peak_resident": 7}

    action = {"found": 0.9, "wrong_of_hits": 0.1, "wrong_of_absent": 0.2, "lookup_ms": 30.0}
    report = {
        "quality": {"systems": {"bm25": {"recall": 0.7, "ndcg": 0.5}}},
        "speed": {"edge, many": run(64.0, 100_000)}, "actions": {"reranked": action, "stored": 5},
    }  # fmt: skip
    turns = {"edge": [run(8.0, 5000), run(12.0, 5000)], "mem0": [run(50.0, 5000)] * 2}
    found = named(memory.figures(report, turns))
    assert found["searching and adding", "edge, 5,000 memories", "search p50"].rounds == (0.008, 0.012)
    assert found["searching and adding", "edge, 100,000 memories", "search p50"].rounds == (0.064,)
    assert {figure.row for figure in found.values() if figure.peer} == {"mem0, 5,000 memories"}
    assert found["cache of actions", "reranked", "lookup"].median == 0.03
    named(memory.figures(report, {"edge": [], "mem0": []}))


def test_a_gpu_beside_transformers() -> None:
    row = {"seconds": [0.5, 0.6], "device_peak": 2 * 10**9}
    parts = {
        "s transformers": {"rows": {"sorted": row}}, "s int8": {"rows": {"two layers": row}},
        "s fp16": {"left_out": "no memory"},
        "search": {"rows": {"cuda": {"queries_per_second": {"1": 5.0}, "recall": 0.9}, "faiss": {"recall": 0.9}}},
    }  # fmt: skip
    found = named(gpu.figures({"shapes": ["s"], "parts": parts}))
    assert found["s", "edge int8, two layers", "time"].rounds == (0.5, 0.6)
    assert {figure.row for figure in found.values() if figure.peer} == {"transformers, sorted", "faiss"}
