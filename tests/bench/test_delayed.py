"""Delayed-synchronisation traversal: against best-first search as it is printed, and with more groups in flight.

The sets of visited vertices: new vertices are known as such, and a Bloom filter errs rarely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from naive.graph import best_first, nearest_lists, vectors_of

from bench.delayed import (
    BITS,
    BloomFilter,
    Evaluated,
    ExactSet,
    Launch,
    Visited,
    at_once,
    traverse,
)
from edge.errors import RangeError

VECTORS = vectors_of(600, 16)
GRAPH = [[v for v in row if v >= 0] for row in nearest_lists(VECTORS, 8).tolist()]
QUERIES = vectors_of(25, 16, seed=3)


def distances(query: np.ndarray, ids: Sequence[int]) -> list[float]:
    return [float(((VECTORS[number] - query) ** 2).sum()) for number in ids]


def launched(query: np.ndarray) -> Launch:
    return at_once(GRAPH, lambda ids: distances(query, ids))


@pytest.mark.parametrize(("k", "length"), [(1, 1), (5, 12), (10, 10), (10, 600)])
def test_one_group_of_one_candidate_is_best_first_search(k: int, length: int) -> None:
    for query in QUERIES:

        def distance(vertex: int, query: np.ndarray = query) -> float:
            return distances(query, [vertex])[0]

        labels, hops = best_first(GRAPH, distance, 0, k, length)
        found = traverse(launched(query), 0, k=k, length=length)
        assert list(found.labels) == labels
        assert found.hops == hops
        assert list(found.distances) == distances(query, found.labels)


def test_vertices_at_the_same_distance_are_ordered_by_their_numbers() -> None:
    graph = [[other for other in range(40) if other % 3 != vertex % 3] for vertex in range(40)]

    def distance(vertex: int) -> float:
        return float(vertex // 10)

    for length in (3, 10, 15, 40):
        labels, hops = best_first(graph, distance, 39, 3, length)
        found = traverse(at_once(graph, lambda ids: [distance(v) for v in ids]), 39, k=3, length=length)
        assert list(found.labels) == labels == [0, 1, 2]
        assert found.hops == hops
        more = traverse(
            at_once(graph, lambda ids: [distance(v) for v in ids]), 39, k=3, length=length, groups=3, candidates=2
        )
        assert more.labels == found.labels


def recalled(groups: int, candidates: int, length: int) -> tuple[int, int]:
    """Hops, and results among the five nearest, of all queries."""
    hops = right = 0
    for query in QUERIES:
        exact = set(np.argsort(((VECTORS - query) ** 2).sum(axis=1))[:5].tolist())
        found = traverse(launched(query), 0, k=5, length=length, groups=groups, candidates=candidates)
        hops += found.hops
        right += len(exact & set(found.labels))
    return hops, right


def test_more_in_flight_means_more_hops_and_no_less_found() -> None:
    sizes = [recalled(*size, length=12) for size in ((1, 1), (2, 1), (4, 1), (4, 2), (6, 3))]
    hops = [size[0] for size in sizes]
    assert hops == sorted(hops)
    assert hops[0] < hops[-1]
    assert sizes[-1][1] >= sizes[0][1]


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 2)])
def test_a_longer_queue_finds_no_less(size: tuple[int, int]) -> None:
    found = [recalled(*size, length)[1] for length in (5, 10, 20, 40, 80)]
    assert all(later >= earlier - 2 for earlier, later in pairwise(found))
    assert found[-1] > found[0]
    assert found[-1] >= 0.95 * 5 * len(QUERIES)


class Watched:
    """Launches groups whose results are there when they are waited for. It counts those under way."""

    def __init__(self, query: np.ndarray) -> None:
        self._launch = launched(query)
        self.flying = 0
        self.most = 0

    def __call__(self, vertices: Sequence[int]) -> Callable[[], Evaluated]:
        finish = self._launch(vertices)
        self.flying += 1
        self.most = max(self.most, self.flying)

        def end() -> Evaluated:
            self.flying -= 1
            return finish()

        return end


@pytest.mark.parametrize(("groups", "candidates"), [(1, 1), (1, 4), (3, 1), (4, 2)])
def test_as_many_groups_are_under_way_as_allowed(groups: int, candidates: int) -> None:
    for query in QUERIES:
        watched = Watched(query)
        found = traverse(watched, 0, k=5, length=20, groups=groups, candidates=candidates)
        assert watched.most == groups
        assert watched.flying == 0
        assert found.hops <= candidates * len(found.launches)
        assert 1 + sum(found.launches) <= len(VECTORS)


def test_false_positives_of_a_filter_only_lose_vertices() -> None:
    """With a queue for all vertices the exact search visits every vertex that can be reached, and a small filter hides
    some of them. All that is found then has its true distance, and occurs once."""
    for query in QUERIES[:5]:
        exact = traverse(launched(query), 0, k=600, length=600)
        assert traverse(launched(query), 0, k=600, length=600, visited=BloomFilter(1 << 22)) == exact
        found = traverse(launched(query), 0, k=600, length=600, visited=BloomFilter(1 << 11, 2))
        assert 100 < len(found.labels) < len(exact.labels)
        kept = set(found.labels)
        assert kept < set(exact.labels)
        assert list(found.labels) == [vertex for vertex in exact.labels if vertex in kept]
        assert list(found.distances) == distances(query, found.labels)


def test_candidates_that_are_kept_are_bounded() -> None:
    """A query far away makes every new vertex a candidate for a while; those too far are dropped."""
    line = [[n + 1, max(0, n - 1)] if n < 3999 else [] for n in range(4000)]
    held: list[int] = []

    def distance(ids: Sequence[int]) -> list[float]:
        held.append(len(ids))
        return [4000.0 - n for n in ids]

    found = traverse(at_once(line, distance), 0, k=5, length=5)
    assert found.labels == (3999, 3998, 3997, 3996, 3995)
    assert found.hops == 4000


def test_numbers_out_of_range_are_refused() -> None:
    for wrong in ({"k": 9, "length": 4}, {"k": 0, "length": 4}, {"k": 1, "length": 4, "groups": 0}):
        with pytest.raises(RangeError):
            traverse(launched(QUERIES[0]), 0, **wrong)


@pytest.mark.parametrize("seen", [ExactSet(), BloomFilter()])
def test_each_vertex_is_new_once(seen: Visited) -> None:
    assert seen.fresh([[5, 3, 5], [3, 9]]) == [5, 3, 9]
    assert seen.fresh([[9, 1], [], [1, 5]]) == [1]
    assert seen.fresh([[], []]) == []
    assert seen.fresh([]) == []
    assert seen.fresh([np.array([2, 1], np.int32), np.array([2], np.int32)]) == [2]  # type: ignore[list-item]


@pytest.mark.parametrize(("bits", "hashes"), [(1 << 12, 1), (1 << 12, 3), (1 << 13, 2)])
@pytest.mark.parametrize("step", [1, 6, 4096])
def test_a_bloom_filter_errs_as_often_as_the_formula_says(bits: int, hashes: int, step: int) -> None:
    taken = BloomFilter(bits, hashes)
    for item in range(500):
        taken.fresh([[item * step]])
    others = range(1000 * step, 41_000 * step, step)
    wrong = 1 - len(taken.fresh([others])) / len(others)  # all of them are looked up before the first is added
    assert wrong == pytest.approx((1 - math.exp(-hashes * 500 / bits)) ** hashes, rel=0.25)


def test_a_bloom_filter_forgets_nothing_until_it_is_cleared() -> None:
    taken = BloomFilter(1 << 9, 2)
    first = taken.fresh([range(200)])
    assert taken.fresh([range(200)]) == []
    assert first, "an empty filter has seen nothing"
    taken.clear()
    assert taken.fresh([range(200)]) == first
    assert taken.nbytes == 1 << 9
    assert BITS == 256 << 10, "the size in the source"


def test_a_filter_of_wrong_size_is_refused() -> None:
    for bits, hashes in ((1000, 3), (4, 1), (16, 0)):
        with pytest.raises(RangeError):
            BloomFilter(bits, hashes)
    assert BloomFilter(8, 1).fresh([[3]]) == [3]
