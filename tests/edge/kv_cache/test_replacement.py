"""The rank of cached states: frequency, cost and age for PGDSF, one of them for the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.knowledge import Rig, segment

from edge.errors import InputError
from edge.files import sealed
from edge.kv_cache.backend import LearnedCosts, StateSegment, cached_first
from edge.kv_cache.prefix_tree import PGDSF, Usage


def usage_of(frequency: int, *costs: float) -> Usage:
    usage = Usage()
    for cost in costs:
        usage.missed(cost)
    for _ in range(frequency):
        usage.requested()
    return usage


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_resumed_tier_evicts_what_it_would_have_and_ages_it(priorities: list[float]) -> None:
    policy = PGDSF()
    policy.resumed(priorities)
    newcomer = policy.used(usage_of(0))
    assert newcomer == min(priorities), "what comes anew is worth no less than the least, and no more than it must"


def seconds_of(cached: int, computed: int) -> float:
    """A model of the cost of a call: products and attention."""
    return 0.02 + 1e-3 * computed + 2e-7 * computed * (cached + computed / 2)


def test_costs_are_learned_from_the_prefills_of_an_application() -> None:
    costs = LearnedCosts("m")
    assert not costs.known
    assert costs.estimate(100, 100) == 0.0
    for computed, seconds in ((0, 1.0), (10, 0.0), (10, float("nan")), (10, float("inf"))):  # which cannot be
        costs.learn(0, computed, seconds)
    assert not costs.known
    for cached, computed in [(0, 60), (60, 400), (460, 350), (0, 80), (80, 500), (580, 30), (610, 700)]:
        costs.learn(cached, computed, seconds_of(cached, computed))
    for cached, computed in [(0, 512), (2000, 100), (900, 32)]:
        assert costs.estimate(cached, computed) == pytest.approx(seconds_of(cached, computed), rel=0.01)


def test_noise_makes_no_term_negative_and_a_slower_machine_is_noticed() -> None:
    random = np.random.default_rng(0)
    costs = LearnedCosts("m")
    for _ in range(60):
        cached, computed = (int(n) for n in random.integers(1, 800, 2))
        costs.learn(cached, computed, seconds_of(cached, computed) * random.uniform(0.7, 1.4))
    table = np.array([[costs.estimate(cached, n) for n in (1, 50, 400, 900)] for cached in (0, 100, 900)])
    assert (table > 0).all()
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) > 0).all()
    before = costs.estimate(300, 300)
    for _ in range(200):
        cached, computed = (int(n) for n in random.integers(1, 800, 2))
        costs.learn(cached, computed, 3 * seconds_of(cached, computed))
    assert costs.estimate(300, 300) > 2 * before


def test_learned_costs_survive_the_process_and_belong_to_one_backend(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs = LearnedCosts("m", path)
    costs.save()
    assert not path.exists(), "there is nothing to keep"
    costs.learn(0, 100, 0.5)
    costs.learn(100, 400, 2.5)
    costs.save()
    assert LearnedCosts("m", path).estimate(50, 50) == costs.estimate(50, 50)
    assert not LearnedCosts("other", path).known
    path.write_text("[", encoding="utf-8")
    assert not LearnedCosts("m", path).known


@pytest.mark.parametrize(
    "state",
    [{}, {"products": 1, "targets": []}, {"products": [[1]], "targets": [1]}, {"products": "x", "targets": None},
     {"products": [[1, 0, 0]] * 3, "targets": [1, -1, 0]}],
)  # fmt: skip
def test_kept_costs_that_make_no_sense_are_learned_anew(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "costs.json"
    sealed.write_sealed(path, {"fingerprint": "m", **state})
    assert not LearnedCosts("m", path).known


SYSTEM = segment("system", 10)
POOL = [segment(name, length) for name, length in zip("abcde", (5, 20, 9, 12, 7), strict=True)]


def in_order(rig: Rig, documents: list[StateSegment], scores: list[float], *, tolerance: float = 0.0) -> list[int]:
    """The order for a tree that knows some of the documents."""

    def cached(order: Sequence[int]) -> int | None:
        match = rig.tree.match([SYSTEM, *(documents[i] for i in order)])
        return None if match.missing else match.cached

    return cached_first(scores, cached, tolerance=tolerance)


def test_of_documents_about_as_relevant_those_in_the_cache_come_first() -> None:
    assert in_order(Rig(), POOL, [1.0] * 5) == [0, 1, 2, 3, 4], "nothing is cached"
    assert in_order(Rig(), [], []) == []
    rig = Rig()
    rig.ask([SYSTEM, POOL[1], POOL[0]])
    assert in_order(rig, POOL[:2], [0.9, 0.8]) == [0, 1], "no tie"
    assert in_order(rig, POOL[:2], [0.9, 0.8], tolerance=0.1 + 1e-9) == [1, 0]
    assert in_order(rig, POOL[:3], [0.9, 0.85, 0.78], tolerance=0.1) == [1, 0, 2]
    rig.ask([SYSTEM, POOL[2], POOL[1], POOL[0], POOL[3]])
    assert in_order(rig, POOL[:3], [0.9, 0.85, 0.78], tolerance=0.1) == [1, 0, 2], "0.78 is too far"
    rig = Rig()
    rig.ask([SYSTEM, POOL[2], POOL[1]])
    assert in_order(rig, POOL[:4], [0.9, 0.9, 0.9, 0.9]) == [2, 1, 0, 3]
    with pytest.raises(InputError, match="2 documents"):
        in_order(rig, POOL[:2], [0.5, 0.6])


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
