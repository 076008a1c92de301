"""Graphs of neighbours from faiss, which is imported at first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge.apps.bench.graph_file import Neighbours
from edge.budget import MemoryBudget
from edge.errors import CapabilityError, RangeError
from edge.ivf.base import Vectors

_QUEUE = 100
"""Length of the queue while the graph is built (`efConstruction`)."""

_LEVELS = 1.2
"""Bytes of all levels over those of the base level, at most: a vertex has upper ones with a probability of 2/degree."""

_VERTEX_NBYTES = 32
"""Of a vertex besides vector and neighbours: its level, its offset, its lock."""

_THREAD_NBYTES = 8 << 20
"""Of the queues and the set of visited vertices of a thread that builds."""


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise CapabilityError("a graph is built by faiss: pip install faiss-cpu") from error
    return faiss


def hnsw_nbytes(rows: int, dim: int, degree: int) -> int:
    """Bytes that `hnsw_graph` holds at most besides the given vectors: faiss's copy of them, its lists, and ours."""
    lists = int(_LEVELS * 4 * degree) * 2 + 2 * 8 * degree
    return rows * (4 * dim + lists + _VERTEX_NBYTES + 4) + _THREAD_NBYTES


def hnsw_graph(vectors: Vectors, degree: int, *, budget: MemoryBudget) -> tuple[Neighbours, int]:
    """The base level of faiss's HNSW graph, by inner product, and the vertex where a search enters.

    It is built by one thread, so that the same vectors give the same graph.

    Args:
        vectors: [n, dim].
        degree: the most neighbours of a vertex, even.

    Raises:
        RangeError: `degree` is odd or below 4.
        CapabilityError: faiss is not installed.
        BudgetExceeded: the graph does not fit the memory limit while it is built.
    """
    if degree < 4 or degree % 2:
        raise RangeError(f"a graph of faiss has an even degree of at least 4, not {degree}")
    faiss = _faiss()
    count, dim = vectors.shape
    with budget.reserve("graph builder", hnsw_nbytes(count, dim, degree)):
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            index = faiss.IndexHNSWFlat(dim, degree // 2, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _QUEUE
            index.add(np.ascontiguousarray(vectors, np.float32))
        finally:
            faiss.omp_set_num_threads(threads)
        hnsw = index.hnsw
        starts = faiss.vector_to_array(hnsw.offsets)[:-1].astype(np.int64)
        numbers = faiss.vector_to_array(hnsw.neighbors)
        neighbours: Neighbours = numbers[starts[:, None] + np.arange(degree)]
        return neighbours, int(hnsw.entry_point)
