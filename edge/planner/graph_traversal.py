"""A model of an accelerator that searches graphs (Falcon; Jiang's thesis, chapter 7), and graphs for it.

The search itself is `edge.planner.traversal`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.planner.traversal import Traversal

_BLOCK = 256
"""Vectors that are compared with all others at a time."""

_SET_NBYTES = 512
"""Of a vertex: its set and its list without their entries."""

_EDGE_NBYTES = 128
"""Of an edge in a set that may be half empty, and in a list; the number itself is shared."""

Vectors = npt.NDArray[np.float32]


def graph_nbytes(count: int, dim: int, degree: int, far: int = 2) -> int:
    """Bytes that `nearest_graph` of `count` vectors holds at most: the vectors and their squares, the distances of a
    block and their order, and the edges as sets and as lists, both ways."""
    block = min(count, _BLOCK) * count * (4 * 4 + 8)
    edges = 2 * (degree + far) * count
    return count * (8 * dim + 8 * (degree + far) + _SET_NBYTES) + block + edges * _EDGE_NBYTES


def nearest_graph(vectors: Vectors, degree: int, far: int = 2) -> list[list[int]]:
    """A neighbour graph by comparison of all pairs.

    Each vertex is connected with its nearest vertices, and with a few random ones. Without the latter a search could
    not leave the cluster where it begins.

    Args:
        vectors: [n, dim].
        degree: number of nearest vertices that each vertex chooses.
        far: number of random vertices that each vertex chooses.
    """
    squares = (vectors**2).sum(axis=1)
    nearest = np.empty((len(vectors), degree), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        own = slice(start, start + _BLOCK)
        distances = squares[own, None] + squares[None, :] - 2 * vectors[own] @ vectors.T
        distances[np.arange(len(distances)), np.arange(start, start + len(distances))] = np.inf
        nearest[own] = np.argpartition(distances, degree, axis=1)[:, :degree]
    anywhere = np.random.default_rng(0).integers(len(vectors), size=(len(vectors), far))
    edges: list[set[int]] = [set(row) for row in nearest.tolist()]
    for vertex, row in enumerate(np.concatenate((nearest, anywhere), axis=1).tolist()):
        for other in row:
            if other != vertex:
                edges[vertex].add(other)
                edges[other].add(vertex)
    return [sorted(row) for row in edges]


@dataclass(frozen=True, slots=True)
class TraversalUnits:
    """An accelerator of traversals, in cycles (Jiang's thesis, section 7.3.2).

    Attributes:
        computing: number of units that fetch vectors and compute distances in parallel.
        per_vector: cycles of one unit for each vector; 64 bytes arrive in a cycle, as in the thesis.
        latency: cycles of a group from its launch to its first distance. The thesis prints none; this is a guess.
        insert: cycles to insert a distance into the queue, as in the thesis.
    """

    computing: int = 4
    per_vector: float = 6.0
    latency: float = 160.0
    insert: float = 2.0


def traversal_cycles(traversal: Traversal, groups: int, length: int, units: TraversalUnits) -> float:
    """Cycles of a traversal.

    The groups share the computing units. The queue inserts and sorts one group at a time before it launches the next.
    """
    computing = queue = 0.0
    flying: deque[tuple[float, int]] = deque()
    for count in traversal.launches:
        if len(flying) == groups:
            ready, inserted = flying.popleft()
            queue = max(queue, ready) + inserted * units.insert + length - 1
        begin = max(computing, queue)
        computing = begin + count * units.per_vector / units.computing
        flying.append((max(computing, queue + units.latency), count))
    for ready, inserted in flying:
        queue = max(queue, ready) + inserted * units.insert + length - 1
    return queue
