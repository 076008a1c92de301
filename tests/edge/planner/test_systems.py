"""Chameleon, PipeRAG, FANNS and Falcon: closed forms against brute force, and simulations against bounds."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from naive.published_systems import bitonic_cycles, lists_within, overlap_gains, pipelined, tail, unpipelined

from edge.errors import RangeError
from edge.planner.search_accelerator import (
    Alternation,
    SearchParameters,
    Units,
    queries_per_second,
    queue_length,
    stage_cycles,
)
from edge.planner.traversal import (
    Launch,
    Traversal,
    TraversalUnits,
    at_once,
    graph_nbytes,
    nearest_graph,
    traversal_cycles,
    traverse,
)


@pytest.mark.parametrize(("queues", "length"), [(2, 63), (4, 38), (8, 23), (16, 15), (32, 10), (64, 8)])
def test_queues_are_as_short_as_the_bound_allows(queues: int, length: int) -> None:
    assert queue_length(100, queues) == length
    assert queues * tail(100, queues, length) <= 0.01 < queues * tail(100, queues, length - 1)


@pytest.mark.parametrize(("queues", "results"), [(4, 20), (16, 100)])
def test_striped_lists_lose_nothing_in_99_of_100_searches_and_whole_lists_do(queues: int, results: int) -> None:
    random = np.random.default_rng(5)
    length = queue_length(results, queues)
    dealt = random.integers(queues, size=(10_000, results))
    most = np.stack([np.bincount(row, minlength=queues).max() for row in dealt])
    assert (most <= length).mean() >= 0.99
    # Near results lie in few lists, and each list in one place.
    whole = random.integers(queues, size=(1000, 3))[:, :, None].repeat(results // 3, axis=2).reshape(1000, -1)
    most = np.stack([np.bincount(row, minlength=queues).max() for row in whole])
    assert (most <= length).mean() < 0.5


def test_a_confidence_is_between_0_and_1() -> None:
    with pytest.raises(RangeError):
        queue_length(100, 16, confidence=1.0)
    assert queue_length(10, 1) == 10


@pytest.mark.parametrize("ratio", [0.16, 0.78, 2.37, 14.9, 98.0])
def test_the_share_of_devices_is_the_best_of_all(ratio: float) -> None:
    work = Alternation(8, 4, ratio / 8, 1.0)
    rates = [work.throughput(count, 1000 - count) for count in range(1, 1000)]
    best = 1 + int(np.argmax(rates))
    assert abs(best - 1000 * work.generating_share) <= 1
    assert work.throughput(*work.divided(1000)) == max(rates)
    assert 0.5 <= work.generating_share < 1


@pytest.mark.parametrize(
    ("ratio", "percent"),
    [(0.16, (37, 93, 43)), (2.37, (26, 65, 87)), (14.9, (21, 53, 85)), (0.78, (31, 78, 56)), (98.0, (20, 51, 81))],
)
def test_no_fixed_ratio_of_devices_is_good_for_every_workload(ratio: float, percent: tuple[int, ...]) -> None:
    """The percentages were computed by hand for ratios of 1:4, 1:1 and 4:1 at the workloads of figure 4.10."""
    work = Alternation(8, 4, ratio / 8, 1.0)
    assert [round(100 * work.efficiency(share)) for share in (0.2, 0.5, 0.8)] == list(percent)
    assert work.efficiency(work.generating_share) == pytest.approx(1)
    best = work.throughput(*work.divided(1000))
    assert work.efficiency(0.5) == pytest.approx(work.throughput(500, 500) / best, rel=0.002)
    with pytest.raises(RangeError):
        work.efficiency(1.1)


def test_devices_can_be_divided_only_if_there_are_two() -> None:
    assert Alternation(1, 1, 1e-9, 1.0).divided(2) == (1, 1)
    with pytest.raises(RangeError):
        Alternation(1, 1, 1.0, 1.0).divided(1)
    with pytest.raises(RangeError):
        Alternation(1, 1, 0.0, 1.0)


def test_overlap_gains_less_than_two_and_most_where_both_sides_are_equal() -> None:
    gains = overlap_gains()
    peak = gains.index(max(gains))
    assert all(a < b for a, b in pairwise(gains[: peak + 1]))
    assert all(a > b for a, b in pairwise(gains[peak:]))
    assert max(gains) < 2
    assert pipelined([1.0, 1.0, 1.0], 0.0) == unpipelined([1.0, 1.0, 1.0], 0.0) == 3.0
    assert pipelined([1.0], 5.0) == 1.0


def test_lists_within_a_time_are_the_most_that_fit() -> None:
    for seconds in (0.05, 0.46, 0.84):
        count = lists_within(seconds, 0.0182, 0.0198, 128)
        assert 0.0182 + count * 0.0198 <= seconds < 0.0182 + (count + 1) * 0.0198
    assert lists_within(0.001, 0.0182, 0.0198, 128) == 1
    assert lists_within(100, 0.0182, 0.0198, 128) == 128


def test_the_bottleneck_of_the_accelerator_moves_with_the_parameters() -> None:
    def share(stage: str, search: SearchParameters) -> float:
        cycles = stage_cycles(search, Units(8, 5, 16))
        return cycles[stage] / sum(cycles.values())

    probed = [share("scan", SearchParameters(1e8, 4096, count)) for count in (1, 8, 32)]
    assert probed == sorted(probed)
    lists = [share("centroid distances", SearchParameters(1e8, count, 8)) for count in (1024, 8192, 65536)]
    assert lists == sorted(lists)
    search = SearchParameters(1e8, 8192, 17)
    assert queries_per_second(search, Units(11, 9, 36)) > 1.3 * queries_per_second(search, Units(11, 9, 4))
    assert [bitonic_cycles(width) for width in (2, 4, 16)] == [1, 3, 10]
    with pytest.raises(RangeError):
        SearchParameters(1e8, 16, 17)


VECTORS = np.random.default_rng(2).standard_normal((600, 16)).astype(np.float32)
GRAPH = nearest_graph(VECTORS, 6)
QUERIES = np.random.default_rng(3).standard_normal((25, 16))


def distances(query: np.ndarray, ids: list[int]) -> list[float]:
    result: list[float] = ((VECTORS[ids] - query) ** 2).sum(axis=1).tolist()
    return result


def launched(query: np.ndarray) -> Launch:
    return at_once(GRAPH, lambda ids: distances(query, list(ids)))


def test_the_graph_names_the_nearest_both_ways() -> None:
    exact = np.argsort(((VECTORS[:, None] - VECTORS[None]) ** 2).sum(axis=2), axis=1)[:, 1:7]
    near = nearest_graph(VECTORS, 6, far=0)
    for vertex, row in enumerate(exact.tolist()):
        assert set(row) <= set(near[vertex]) <= set(GRAPH[vertex])
        assert all(vertex in near[other] for other in row)
        assert vertex not in GRAPH[vertex]


def test_groups_in_flight_hide_the_latency() -> None:
    """Two groups of 8 vectors of 1 cycle each; a latency of 100; a queue that takes 1 cycle a result and sorts in 9."""
    units = TraversalUnits(computing=1, per_vector=1.0, latency=100.0, insert=1.0)
    run = Traversal((), 2, (8, 8))
    assert traversal_cycles(run, 1, 10, units) == 2 * (100 + 8 + 9)
    assert traversal_cycles(run, 2, 10, units) == 100 + 2 * (8 + 9)
    # Three units share 12 vectors of 6 cycles each; a row that arrives after the latency is there by then.
    slow = TraversalUnits(computing=3, per_vector=6.0, latency=10.0, insert=2.0)
    assert traversal_cycles(Traversal((), 1, (12,)), 1, 10, slow) == 12 * 6 / 3 + 12 * 2 + 9


def test_the_gain_rises_and_falls_with_the_groups() -> None:
    units = TraversalUnits(computing=1)

    def cycles(groups: int, candidates: int) -> float:
        runs = [traverse(launched(query), 0, k=5, length=12, groups=groups, candidates=candidates) for query in QUERIES]
        return sum(traversal_cycles(run, groups, 12, units) for run in runs)

    alone, few, many = cycles(1, 1), cycles(4, 1), cycles(7, 4)
    assert few < many < alone or few < alone < many


@pytest.mark.parametrize(("count", "dim", "degree"), [(1500, 96, 8), (600, 16, 64), (300, 8, 1)])
def test_building_a_graph_holds_no_more_than_it_says(count: int, dim: int, degree: int) -> None:
    random = np.random.default_rng(1)
    tracemalloc.start()
    try:
        vectors = random.standard_normal((count, dim)).astype(np.float32)
        graph = nearest_graph(vectors, degree)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(graph) == count
    assert peak <= graph_nbytes(count, dim, degree) <= 3 * peak + (1 << 20)
