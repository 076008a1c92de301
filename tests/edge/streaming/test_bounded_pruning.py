"""A margin of calibrated error: no candidate that may still win is dropped, none that may still lose is selected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import InputError
from edge.streaming.pruning import BoundedPruning, Mode


def probabilities(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-odds))


def naive(odds: dict[int, float], remaining: int, reach: float, mode: str) -> tuple[set[int], set[int], set[int]]:
    """(selected, dropped, deferred) by comparing every candidate with every other one."""
    selected, dropped = set(), set()
    for i, own in odds.items():
        surely_better = [j for j, other in odds.items() if j != i and other - own > reach]
        if len(surely_better) >= remaining:
            dropped.add(i)
        surely_worse = [j for j, other in odds.items() if j != i and own - other > reach]
        if mode == "top-k" and len(surely_worse) >= len(odds) - remaining and len(odds) > remaining:
            selected.add(i)
    deferred = set(odds) - selected - dropped
    if mode == "top-k" and len(deferred) <= remaining - len(selected):
        selected, deferred = selected | deferred, set()
    return selected, dropped, deferred


@given(
    n=st.integers(2, 20), k=st.integers(1, 20), mode=st.sampled_from(["ranked", "top-k"]),
    reach=st.floats(0.01, 3), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_it_decides_as_comparing_all_pairs_does(n: int, k: int, mode: Mode, reach: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    pruning = BoundedPruning(k, mode=mode, errors=[reach / math.sqrt(2)] * 4, margin=1.0, candidates=n)
    active = np.arange(n)
    for layer in (1, 2, 3):
        odds = random.normal(size=len(active)) * 2
        remaining = pruning.remaining
        decision = pruning.decide(layer, active, probabilities(odds))
        if k >= n or (pruning.mode == "ranked" and len(active) <= k):
            assert set(decision.deferred.tolist()) == set(active.tolist())
            return
        expected = naive(dict(zip(active.tolist(), odds.tolist(), strict=True)), remaining, reach, pruning.mode)
        now = (decision.selected, decision.dropped, decision.deferred)
        assert tuple(set(part.tolist()) for part in now) == expected
        active = decision.deferred
        assert decision.finished == (len(active) == 0)
        if decision.finished:
            assert pruning.remaining == 0
            return


def test_layers_that_say_nothing_are_not_looked_at() -> None:
    pruning = BoundedPruning(2, errors=[0.6, math.inf, 0.5, 0.0], margin=2.0, candidates=9)
    assert [pruning.wants(layer) for layer in (0, 1, 2, 3)] == [True, False, True, True]
    everybody = BoundedPruning(9, errors=[0.2, 0.1, 0.1], margin=2.0, candidates=9)
    assert not everybody.wants(0)
    assert not everybody.wants(1)
    assert everybody.mode == "ranked"


@pytest.mark.parametrize("mode", ["ranked", "top-k"])
def test_before_the_first_layer_candidates_are_dropped_and_none_is_selected(mode: Mode) -> None:
    pruning = BoundedPruning(2, mode=mode, errors=[0.5, 0.2, 0.0], margin=1.0, candidates=5)
    odds = np.array([9.0, 5.0, 4.5, -3.0, -4.0])
    first = pruning.decide(0, np.arange(5), probabilities(odds))
    assert first.selected.tolist() == []
    assert first.dropped.tolist() == [3, 4]
    assert first.deferred.tolist() == [0, 1, 2]
    assert not first.finished


def test_an_infinite_margin_never_prunes() -> None:
    pruning = BoundedPruning(1, errors=[0.2, 0.1, 0.0], margin=math.inf, candidates=3)
    assert not pruning.wants(1)
    decision = pruning.decide(1, np.arange(3), np.array([0.1, 0.5, 0.9]))
    assert decision.deferred.tolist() == [0, 1, 2]


def test_no_results_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        BoundedPruning(0, errors=[0.1], margin=1.0, candidates=3)
