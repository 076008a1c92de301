"""The fleet's processes answer as one process would, and its figures name their origins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bench import fleet


def naive(dims: list[int], indices: np.ndarray, nodes: int) -> np.ndarray:
    """Clicks by the same tables and layers in one place."""
    own = [dims[i::nodes] for i in range(nodes)]
    columns = [range(i, len(dims), nodes) for i in range(nodes)]
    rows = []
    for some, places in zip(own, columns, strict=True):
        for number, (dim, column) in enumerate(zip(some, places, strict=True)):
            table = np.random.default_rng(number).standard_normal((fleet.ROWS, dim)).astype(np.float32)
            rows.append(table[indices[:, column]])
    values = np.concatenate(rows, axis=1)
    sizes = [sum(dims), *fleet.LAYERS]
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layer = (np.random.default_rng(i).standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        values = np.maximum(values @ layer, 0) if i + 1 < len(fleet.LAYERS) else 1 / (1 + np.exp(-(values @ layer)))
    return values


def test_clicks_of_several_processes_are_those_of_one() -> None:
    dims = [3, 4, 2, 5, 4]
    batches = [fleet.items(len(dims), 7, seed) for seed in range(3)]
    several = fleet.Fleet(dims, 2, 1e-5)
    try:
        _, found = several.run(batches, 2)
    finally:
        several.close()
    for batch, clicks in zip(batches, found, strict=True):
        assert clicks == pytest.approx(naive(dims, batch, 2), abs=1e-5)


def test_look_ups_by_the_model_of_banks_are_the_published_throughput() -> None:
    """The thesis says that FleetRec is bound by its look-ups for these models; the two models share no number."""
    for model in fleet.MODELS:
        assert fleet.predicted(model) == pytest.approx(model.published, rel=0.06)
