"""A small ranking on a device beside the reference, as every device that runs layers is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge.config import Config
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Reranker

QUERY = "which river floods"
RESIDENT, STREAMED = Tuning(chunk_tokens=60), Tuning(chunk_tokens=60, buffers=2)
OFFLOADED = Tuning(chunk_tokens=60, buffers=2, offload=True)
OnDevice = Callable[[Path, Tuning], Reranker]


def documents(count: int = 14) -> list[str]:
    random = np.random.default_rng(3)
    words = [f"word{i}" for i in range(60)]
    return [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(count)]


def config(**flags: Any) -> Config:
    return Config.load(flags={"memory": "40GB", "threads": 1, **flags})


def scores_of(reranker: Reranker, docs: list[str], **options: Any) -> dict[int, float]:
    return {r.index: r.score for r in reranker.rank(QUERY, docs, **options)}


def reference(path: Path, tuning: Tuning) -> Reranker:
    return Reranker(str(path), config=config(runtime="numpy"), tuning=tuning, max_tokens=250)


def ranks_as_the_reference(
    on_device: OnDevice,
    path: Path,
    tuning: Tuning,
    precision: str,
    fp32: float,
    held: Callable[[Any], int] = lambda _: 0,
) -> None:
    """`fp32` is the tolerance of that precision; in int8 an activation may lie half-way between two steps. `held` tells
    the bytes that a place holds on its device."""
    docs = documents()
    with reference(path, tuning) as naive:
        expected = scores_of(naive, docs, threshold="inf")
    with on_device(path, tuning) as reranker:
        found = scores_of(reranker, docs, threshold="inf")
        assert found == scores_of(reranker, docs, threshold="inf")
        assert held(reranker.engine.place) <= reranker.engine.place.memory.limit
    tolerance = {"fp32": fp32, "fp16": 1e-3, "int8": 0.03}[precision]
    assert max(abs(found[i] - expected[i]) for i in expected) < tolerance
    if precision != "int8":
        assert list(found) == list(expected)


def prunes_as_the_reference(on_device: OnDevice, path: Path, tuning: Tuning) -> None:
    """Gaps that pruning leaves among the states."""
    docs = documents(40)
    with reference(path, tuning) as naive:
        expected = naive.explain(QUERY, docs, 5, threshold=0.01, mode="top-k")
    with on_device(path, tuning) as reranker:
        found = reranker.explain(QUERY, docs, 5, threshold=0.01, mode="top-k")
    assert expected.stats.evaluations < expected.stats.evaluations_full, "somebody must be pruned"
    assert found.stats.evaluations == expected.stats.evaluations
    assert [r.index for r in found.results] == [r.index for r in expected.results]


def embeds_as_the_reference(path: Path, tuning: Tuning, tolerance: float, **device: Any) -> None:
    texts, found = documents(), []
    for flags, own in (({"runtime": "numpy"}, Tuning()), (device, tuning)):
        with Embedder(str(path), config=config(**flags), tuning=own, max_tokens=60) as embedder:
            found.append(embedder.embed(texts))
    assert np.abs(found[1] - found[0]).max() < tolerance
