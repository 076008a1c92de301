"""A graph of neighbours over random vectors, and best-first search as it is printed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from bench.graph import Neighbours


def vectors_of(count: int, dim: int, seed: int = 2) -> np.ndarray:
    """Clustered vectors of unit length, [count, dim]."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((8, dim))
    vectors = centres[random.integers(8, size=count)] + 0.8 * random.standard_normal((count, dim))
    unit: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def nearest_lists(vectors: np.ndarray, degree: int) -> Neighbours:
    """The nearest vertices of each vertex and one random vertex, [n, degree]; some lists are shorter (-1)."""
    near = np.argsort(-(vectors @ vectors.T), axis=1)[:, 1:degree].astype(np.int32)
    random = np.random.default_rng(4)
    lists = np.concatenate((random.integers(len(vectors), size=(len(vectors), 1)), near), axis=1).astype(np.int32)
    lists[::5, degree // 2 :] = -1
    lists[::7, 1] = -1
    return lists


def best_first(
    neighbours: Sequence[Sequence[int]], distance: Callable[[int], float], entry: int, k: int, length: int
) -> tuple[list[int], int]:
    """The labels and hops of algorithm 1."""
    first = (distance(entry), entry)
    waiting, results, visited, hops = [first], [first], {entry}, 0
    while waiting and waiting[0] <= max(results):
        _, vertex = heapq.heappop(waiting)
        hops += 1
        for other in neighbours[vertex]:
            if other not in visited:
                visited.add(other)
                found = (distance(other), other)
                heapq.heappush(waiting, found)
                results = sorted([*results, found])[:length]
    return [vertex for _, vertex in sorted(results)[:k]], hops
