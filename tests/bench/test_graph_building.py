"""The base level of faiss's graph: whole, the same each time, and built within the memory it reserves."""

from __future__ import annotations

import numpy as np
import pytest
from naive.graph import vectors_of

from bench.delayed import at_once, traverse
from bench.graph import hnsw_graph, hnsw_nbytes
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, RangeError

VECTORS = vectors_of(1500, 24)


def test_a_search_of_the_base_level_finds_the_nearest() -> None:
    budget = MemoryBudget(1 << 30, baseline=0)
    neighbours, entry = hnsw_graph(VECTORS, 16, budget=budget)
    assert budget.used == 0
    assert neighbours.shape == (1500, 16)
    assert neighbours.dtype == np.int32
    assert 0 <= entry < 1500
    lists = [[v for v in row if v >= 0] for row in neighbours.tolist()]
    assert all(len(set(row)) == len(row) and vertex not in row for vertex, row in enumerate(lists))
    right = 0
    queries = vectors_of(20, 24, seed=9)
    for query in queries:
        scores = VECTORS @ query
        found = traverse(at_once(lists, lambda ids, s=scores: [-float(s[v]) for v in ids]), entry, k=10, length=60)
        right += len(set(found.labels) & set(np.argsort(-scores)[:10].tolist()))
    assert right >= 0.95 * 10 * len(queries)
    again, same = hnsw_graph(VECTORS, 16, budget=budget)
    assert (again.tolist(), same) == (neighbours.tolist(), entry)


def test_building_needs_a_lease_of_its_size() -> None:
    nbytes = hnsw_nbytes(1500, 24, 16)
    with pytest.raises(BudgetExceeded):
        hnsw_graph(VECTORS, 16, budget=MemoryBudget(nbytes - 1, baseline=0))
    lists, vectors = 1500 * 16 * 4, VECTORS.nbytes
    assert nbytes > 2 * lists + vectors


@pytest.mark.parametrize("degree", [2, 15])
def test_a_degree_that_faiss_cannot_make_is_refused(degree: int) -> None:
    with pytest.raises(RangeError, match="even degree"):
        hnsw_graph(VECTORS, degree, budget=MemoryBudget(1 << 30, baseline=0))
