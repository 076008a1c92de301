"""Equally relevant documents change places for a cached beginning; others never do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from naive.knowledge import Rig, segment

from edge.errors import InputError
from edge.kv_cache.backend import StateSegment, cached_first

SYSTEM = segment("system", 10)
POOL = [segment(name, length) for name, length in zip("abcde", (5, 20, 9, 12, 7), strict=True)]


def in_order(rig: Rig, documents: list[StateSegment], scores: list[float], *, tolerance: float = 0.0) -> list[int]:
    """The order for a tree that knows some of the documents."""

    def cached(order: Sequence[int]) -> int | None:
        match = rig.tree.match([SYSTEM, *(documents[i] for i in order)])
        return None if match.missing else match.cached

    return cached_first(scores, cached, tolerance=tolerance)


def test_without_a_tie_the_order_stays() -> None:
    rig = Rig()
    rig.ask([SYSTEM, POOL[1], POOL[0]])
    assert in_order(rig, POOL[:2], [0.9, 0.8]) == [0, 1]


def test_equals_begin_with_what_is_cached() -> None:
    rig = Rig()
    rig.ask([SYSTEM, POOL[2], POOL[1]])
    assert in_order(rig, POOL[:4], [0.9, 0.9, 0.9, 0.9]) == [2, 1, 0, 3]


def test_the_caller_says_how_much_relevance_may_differ() -> None:
    rig = Rig()
    rig.ask([SYSTEM, POOL[1], POOL[0]])
    assert in_order(rig, POOL[:2], [0.9, 0.8], tolerance=0.1 + 1e-9) == [1, 0]
    assert in_order(rig, POOL[:3], [0.9, 0.85, 0.78], tolerance=0.1) == [1, 0, 2]
    rig.ask([SYSTEM, POOL[2], POOL[1], POOL[0], POOL[3]])
    assert in_order(rig, POOL[:3], [0.9, 0.85, 0.78], tolerance=0.1) == [1, 0, 2], "0.78 is too far"


def test_with_nothing_cached_the_order_stays() -> None:
    rig = Rig()
    assert in_order(rig, POOL, [1.0] * 5) == [0, 1, 2, 3, 4]
    assert in_order(rig, [], []) == []


def test_scores_must_not_ascend() -> None:
    with pytest.raises(InputError, match="2 documents"):
        in_order(Rig(), POOL[:2], [0.5, 0.6])


def cached_beginning(rig: Rig, documents: list[StateSegment]) -> int:
    tokens = 0
    for end in range(len(documents)):
        if rig.tree.match([SYSTEM, *documents[: end + 1]]).missing:
            break
        tokens += len(documents[end].tokens)
    return tokens


@settings(max_examples=60)
@given(
    past=st.lists(st.permutations(range(5)).map(lambda order: order[:3]), max_size=6),
    scores=st.lists(st.sampled_from([0.5, 0.7, 0.9]), min_size=5, max_size=5),
)
def test_it_finds_the_longest_cached_beginning_that_is_allowed(past: list[list[int]], scores: list[float]) -> None:
    rig = Rig()
    for chosen in past:
        rig.ask([SYSTEM, *(POOL[i] for i in chosen)])
    scores = sorted(scores, reverse=True)
    order = in_order(rig, POOL, scores)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert [scores[i] for i in order] == scores
    allowed = [p for p in permutations(range(5)) if [scores[i] for i in p] == scores]
    best = max(cached_beginning(rig, [POOL[i] for i in p]) for p in allowed)
    assert cached_beginning(rig, [POOL[i] for i in order]) == best
