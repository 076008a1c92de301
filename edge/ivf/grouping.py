"""Micro-batches of similar queries (TeleRAG, section 4.2, prefetching scheduler)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Vectors


def group(queries: Vectors, size: int) -> list[npt.NDArray[np.int64]]:
    """Cuts a batch into micro-batches of at most `size` queries by greedy nearest neighbours (L2).

    Similar queries probe the same lists, so that each micro-batch shares the lists that are fetched for it.

    Args:
        queries: [q, dim].

    Returns:
        Numbers of queries, each in exactly one group. A group is the first query left and its nearest neighbours.
    """
    left = np.arange(len(queries))
    groups = []
    while len(left):
        difference = queries[left] - queries[left[0]]
        distance = np.einsum("ij,ij->i", difference, difference)
        distance[0] = -1.0  # the first query itself, even if it has a duplicate
        near = np.argsort(distance, kind="stable")[:size]
        groups.append(left[near])
        left = np.delete(left, near)
    return groups
