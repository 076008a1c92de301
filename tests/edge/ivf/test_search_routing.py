"""Which lists, which tier, who goes together, who is done: against plain loops."""

from __future__ import annotations

import itertools
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.lists import gridded

from edge.ivf.dispatcher import Dispatcher
from edge.ivf.grouping import assign, group
from edge.ivf.rescoring import best, exact_scores
from edge.ivf.router import COLD, TierTable, probe


@settings(max_examples=60)
@given(nlist=st.integers(1, 40), distinct=st.sampled_from([None, 3]), nprobe=st.integers(1, 50), seed=st.integers(0, 9))
def test_the_nearest_lists_are_probed_best_first(nlist: int, distinct: int | None, nprobe: int, seed: int) -> None:
    centroids, queries = gridded(nlist, 8, seed, distinct=distinct), gridded(4, 8, seed + 50)
    found = probe(queries, centroids, nprobe)
    for query, lists in zip(queries, found.tolist(), strict=True):
        order = sorted(range(nlist), key=lambda i: (-float(centroids[i] @ query), i))
        assert lists == order[:nprobe]


def test_what_a_query_probes_does_not_depend_on_its_batch() -> None:
    random = np.random.default_rng(0)
    centroids = random.standard_normal((500, 48)).astype(np.float32)
    queries = random.standard_normal((33, 48)).astype(np.float32)
    together = probe(queries, centroids, 20)
    for i, query in enumerate(queries):
        assert probe(query[None], centroids, 20)[0].tolist() == together[i].tolist()


def test_a_rows_exact_score_does_not_depend_on_the_other_rows() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((100, 384)).astype(np.float32)
    query = random.standard_normal(384).astype(np.float32)
    together = exact_scores(rows, query)
    for start, end in itertools.combinations([0, 1, 3, 7, 50, 99, 100], 2):
        assert exact_scores(rows[start:end].copy(), query).tolist() == together[start:end].tolist()


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 10))
def test_the_best_are_sorted_by_score_and_then_by_id(scores: list[int], k: int) -> None:
    ids = np.random.default_rng(0).permutation(len(scores)).astype(np.int64)
    found_scores, found = best(np.array(scores, np.float32), ids, k)
    expected = sorted(zip(scores, ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    assert list(zip(found_scores.tolist(), found.tolist(), strict=True)) == expected


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    devices=st.integers(1, 4),
    data=st.data(),
)
def test_hot_lists_are_dealt_by_size_and_each_tier_gets_its_own_probes(
    sizes: list[int], devices: int, data: st.DataObject
) -> None:
    nlist = len(sizes)
    hot = data.draw(st.lists(st.integers(0, nlist - 1), unique=True))
    table = TierTable.deal(np.array(sizes), hot, devices)
    assert {i for i in range(nlist) if table.tier[i] != COLD} == set(hot)
    loads = [sum(sizes[i] for i in hot if table.tier[i] == device) for device in range(devices)]
    assert max(loads, default=0) - min(loads, default=0) <= max((sizes[i] for i in hot), default=0)
    for device in range(devices):
        assert sorted(table.local[table.tier == device].tolist()) == list(range(int((table.tier == device).sum())))
    probes = np.array([data.draw(st.permutations(range(nlist)))[: min(5, nlist)] for _ in range(3)])
    split = table.split(probes)
    for query in range(3):
        for tier, lists in split.items():
            assert lists[query].tolist() == [i for i in probes[query].tolist() if table.tier[i] == tier]
        held = [i for i in probes[query].tolist() if table.tier[i] != COLD]
        assert table.hit_rate(probes)[query] == pytest.approx(len(held) / probes.shape[1])
    assert sum(len(row) for lists in split.values() for row in lists) == probes.size


@given(count=st.integers(0, 30), size=st.integers(1, 9), distinct=st.sampled_from([None, 2]))
def test_groups_hold_the_nearest_to_the_first_that_is_left(count: int, size: int, distinct: int | None) -> None:
    queries = gridded(count, 4, distinct=distinct) if count else np.zeros((0, 4), np.float32)
    groups = [numbers.tolist() for numbers in group(queries, size)]
    assert sorted(itertools.chain(*groups)) == list(range(count))
    left = list(range(count))
    for numbers in groups:
        assert len(numbers) == min(size, len(left))
        seed = left[0]
        assert numbers[0] == seed
        distance = {i: float(((queries[i] - queries[seed]) ** 2).sum()) for i in left}
        farthest = max(distance[i] for i in numbers)
        left = [i for i in left if i not in numbers]
        assert all(distance[i] >= farthest for i in left)


@given(
    batches=st.lists(st.sets(st.integers(0, 8)), max_size=7),
    devices=st.lists(st.sets(st.integers(0, 8)), min_size=1, max_size=4),
)
def test_the_largest_overlap_is_served_first(batches: list[set[int]], devices: list[set[int]]) -> None:
    found = assign(batches, devices)
    assert len(found) == len(batches)
    expected = [-1] * len(batches)
    free: list[int] = []
    for _ in batches:
        free = free or list(range(len(devices)))
        choices = [(b, d) for b in range(len(batches)) if expected[b] < 0 for d in free]
        batch, device = min(choices, key=lambda pair: (-len(batches[pair[0]] & devices[pair[1]]), pair))
        expected[batch] = device
        free.remove(device)
    assert found == expected


def test_queries_leave_when_their_last_part_is_done() -> None:
    dispatcher = Dispatcher([2, 0, 1], 4)
    assert dispatcher.finished.get_nowait() == 1
    dispatcher.scanned([0])
    assert dispatcher.finished.empty()
    dispatcher.scanned([0, 2])
    assert [dispatcher.finished.get_nowait() for _ in range(2)] == [0, 2]
    assert dispatcher.finished.empty()


def test_what_several_workers_found_is_collected_with_what_they_cannot_have_kept() -> None:
    dispatcher = Dispatcher([1], 3)
    empty = dispatcher.collect(0)
    assert (len(empty.scores), empty.floor) == (0, -np.inf)
    one, two = dispatcher.heaps(), dispatcher.heaps()
    one.scores[0], one.labels[0] = [0.5, 0.25, 1.0], [7, 8, 9]
    two.scores[0, 1], two.labels[0, 1] = 2.0, 3
    found = dispatcher.collect(0)
    assert sorted(zip(found.scores.tolist(), found.labels.tolist(), strict=True)) == [
        (0.25, 8), (0.5, 7), (1.0, 9), (2.0, 3)
    ]  # fmt: skip
    assert found.floor == 0.25, "the second worker's heap is not full: it has kept everything"


def test_parts_counted_by_many_threads_finish_each_query_once() -> None:
    dispatcher = Dispatcher([400] * 5, 1)

    def work() -> None:
        for _ in range(100):
            dispatcher.scanned(range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(dispatcher.finished.get_nowait() for _ in range(5)) == list(range(5))
    assert dispatcher.finished.empty()


def test_the_floor_is_that_of_the_worker_who_kept_least() -> None:
    dispatcher = Dispatcher([1], 2)
    one, two = dispatcher.heaps(), dispatcher.heaps()
    one.scores[0], one.labels[0] = [0.25, 1.0], [7, 8]
    two.scores[0], two.labels[0] = [0.5, 2.0], [1, 2]
    assert dispatcher.collect(0).floor == 0.5
