"""Which lists, which tier, who goes together, who is done: against plain loops."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings
from naive.lists import gridded

from edge.ivf.device import Candidates
from edge.ivf.dispatch import group
from edge.ivf.plan import probe
from edge.ivf.scan import best, exact_scores


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


def offered(width: int, rows: list[tuple[float, int]]) -> Candidates:
    found = Candidates.empty(1, width)
    for score, label in rows:
        found.offer(0, np.array([score], np.float32), np.array([label]))
    return found


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_candidates_keep_the_best(scores: list[int], width: int) -> None:
    found = offered(width, [(score, label) for label, score in enumerate(scores)])
    kept = sorted(scores, reverse=True)[:width]
    taken = found.labels[0] >= 0
    assert sorted(found.scores[0][taken].tolist(), reverse=True) == kept
    assert len(set(found.labels[0][taken].tolist())) == len(kept)
    assert [scores[label] for label in found.labels[0][taken].tolist()] == found.scores[0][taken].tolist()
    assert found.floor(0) == (min(kept) if len(kept) == width else -np.inf)
    heap = found.scores[0].tolist()
    assert all(heap[(i - 1) // 2] <= heap[i] for i in range(1, width)), "a min-heap, as scanners go on with it"
