"""Clusters equal those of an exhaustive search, and no decision loses, doubles or misjudges a candidate."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from naive.kmeans import acceptable_labels
from naive.pruning import prune

from edge.errors import InputError
from edge.streaming.pruning import (
    MAX_CLUSTERS,
    BoundedPruning,
    Mode,
    ProgressivePruning,
    cluster_scores,
    dispersion,
    log_odds,
)

SCORES = st.one_of(
    st.floats(0.0, 1.0, allow_subnormal=False), st.sampled_from([0.0, 0.1, 0.100001, 0.5, 0.9, 0.95, 1.0])
)
POOLS = st.lists(SCORES, min_size=1, max_size=40)


def array(scores: list[float]) -> np.ndarray:
    return np.array(scores, np.float64)


@settings(max_examples=60)
@given(scores=st.lists(SCORES, min_size=1, max_size=8))
@example(scores=[0.9, 0.9, 0.9, 0.1, 0.1])
@example(scores=[0.5] * 9)
@example(scores=[0.95, 0.05, 0.94, 0.5, 0.04, 0.51, 0.96, 0.06])
def test_clusters_equal_those_of_an_exhaustive_search(scores: list[float]) -> None:
    if 0 < np.ptp(scores) < 1e-6:
        return  # below any meaningful probability; floating point decides
    assert cluster_scores(array(scores)).tolist() in acceptable_labels(scores, MAX_CLUSTERS)


@given(scores=POOLS)
def test_clusters_follow_the_order_of_the_scores(scores: list[float]) -> None:
    labels = cluster_scores(array(scores))
    assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1)), "numbered without gaps from 0"
    assert labels.max() < MAX_CLUSTERS
    order = np.argsort(-array(scores), kind="stable")
    assert np.all(np.diff(labels[order]) >= 0)
    assert labels[order[0]] == 0


@given(scores=POOLS, seed=st.integers(0, 1000))
@example(scores=[0.0] * 4 + [0.9711178667260081] + [0.9] * 4 + [4.3e-276], seed=0)  # copies of one document
@example(scores=[0.0] * 5 + [0.75, 0.1, 0.1, 0.1, 1.9e-204], seed=1)
def test_clusters_depend_on_scores_only(scores: list[float], seed: int) -> None:
    """Equal scores share a cluster, and the order of the candidates is no matter."""
    labels = cluster_scores(array(scores))
    shuffled = np.random.default_rng(seed).permutation(len(scores))
    np.testing.assert_array_equal(cluster_scores(array(scores)[shuffled]), labels[shuffled])
    by_score: dict[float, int] = {}
    for score, label in zip(scores, labels.tolist(), strict=True):
        assert by_score.setdefault(score, label) == label


@pytest.mark.parametrize("scores", [[], [0.7], [0.0, 0.0, 0.0], [0.3] * 20, [1e-12, 5e-12, 9e-12], [0.5, 0.5 + 1e-10]])
def test_degenerate_pools_have_no_dispersion_and_are_never_pruned(scores: list[float]) -> None:
    assert dispersion(array(scores)) == 0.0
    ids = np.arange(len(scores))
    pruning = ProgressivePruning(1, threshold=0.0, candidates=max(2, len(scores)))
    decision = pruning.decide(1, ids, array(scores))
    np.testing.assert_array_equal(decision.deferred, ids)
    assert len(decision.selected) == len(decision.dropped) == 0
    assert not decision.finished


@given(scores=st.lists(st.floats(0.001, 1.0), min_size=2, max_size=30))
def test_dispersion_is_the_coefficient_of_variation(scores: list[float]) -> None:
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores))
    assert dispersion(array(scores)) == pytest.approx(deviation / mean, rel=1e-6, abs=1e-8)
    assert dispersion(array([1e-9, 5e-9, 2e-8])) < 0.1, "that of nearly nothing does not explode"


@settings(max_examples=150)
@given(
    candidates=st.integers(1, 30),
    k=st.integers(1, 35),
    mode=st.sampled_from(["top-k", "ranked"]),
    threshold=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    seed=st.integers(0, 10**6),
    grid=st.sampled_from([2, 5, 1000]),
)
def test_a_request_from_layer_to_layer(
    candidates: int, k: int, mode: Mode, threshold: float, seed: int, grid: int
) -> None:
    random = np.random.default_rng(seed)
    pruning = ProgressivePruning(k, mode=mode, threshold=threshold, candidates=candidates)
    slots = min(k, candidates)
    assert pruning.k == slots
    active = random.permutation(candidates)
    selected: list[int] = []
    dropped: set[int] = set()
    for layer in range(1, 7):
        scores = np.round(random.random(len(active)) ** 3 * grid) / grid
        assert pruning.wants(layer)
        decision = pruning.decide(layer, active, scores)
        score = dict(zip(active.tolist(), scores.tolist(), strict=True))
        now = [set(part.tolist()) for part in (decision.selected, decision.dropped, decision.deferred)]

        assert sum(map(len, now)) == len(active)
        assert set.union(*now) == set(active.tolist())
        assert decision.layer == layer
        assert decision.cv == dispersion(scores)
        if decision.cv <= threshold:
            assert (now[0], now[1], len(decision.clusters)) == (set(), set(), 0)
        else:
            cluster = dict(zip(active.tolist(), decision.clusters.tolist(), strict=True))
            ranked = mode == "ranked" or k >= candidates
            assert tuple(now) == prune(score, cluster, slots - len(selected), ranked=ranked)

        worst_winner = min((score[i] for i in now[0]), default=math.inf)
        assert all(score[i] <= worst_winner for i in now[1] | now[2]), "nobody better than a winner stays behind"
        assert all(score[i] < worst for i in now[1] for worst in [min((score[j] for j in now[2]), default=math.inf)])
        ordered = [(-score[i], i) for i in decision.selected.tolist()]
        assert ordered == sorted(ordered), "winners leave best first, ties by number"
        positions = [active.tolist().index(i) for i in decision.deferred.tolist()]
        assert positions == sorted(positions), "who goes on keeps the order of the stored states"

        selected += decision.selected.tolist()
        dropped |= now[1]
        assert pruning.remaining == slots - len(selected) >= 0
        if mode == "ranked" or k >= candidates:
            assert not selected
            assert not decision.finished
            assert len(decision.deferred) >= slots
        else:
            assert len(selected) + len(decision.deferred) >= slots
            assert decision.finished == (len(selected) == slots)
            assert decision.finished == (len(decision.deferred) == 0)
        if decision.finished:
            break
        active = decision.deferred
    assert len(dropped) <= candidates - slots


@given(scores=POOLS, k=st.integers(1, 50))
def test_an_infinite_threshold_never_asks_and_never_prunes(scores: list[float], k: int) -> None:
    pruning = ProgressivePruning(k, threshold=math.inf, candidates=len(scores))
    assert not any(pruning.wants(layer) for layer in range(1, 40))
    decision = pruning.decide(3, np.arange(len(scores)), array(scores))
    assert decision.deferred.tolist() == list(range(len(scores)))
    assert not decision.finished


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("mode", ["top-k", "ranked"])
@pytest.mark.parametrize("bad", [[0], [1, 2], [0, 1, 2, 3, 4]])
def test_scores_that_are_no_numbers_decide_nothing(mode: Mode, bad: list[int]) -> None:
    """Broken weights are the scorer's to report; here they must not pick winners."""
    scores = array([0.9, 0.91, 0.1, 0.1, 0.12])
    scores[bad] = np.nan
    decision = ProgressivePruning(2, mode=mode, threshold=0.0, candidates=5).decide(1, np.arange(5), scores)
    assert decision.deferred.tolist() == [0, 1, 2, 3, 4]
    assert not decision.finished


def test_hopeless_candidates_are_told_from_unlikely_ones() -> None:
    """Three are relevant and ten are wanted: the tenth is among many whose probabilities are all near zero."""
    random = np.random.default_rng(0)
    odds = np.concatenate([random.normal(2, 0.3, 3), random.normal(-5, 0.3, 12), random.normal(-11, 0.3, 45)])
    scores = 1 / (1 + np.exp(-odds))
    decision = ProgressivePruning(10, mode="ranked", threshold=0.5, candidates=60).decide(1, np.arange(60), scores)
    assert decision.dropped.tolist() == list(range(15, 60))
    assert np.array_equal(np.argsort(log_odds(scores)), np.argsort(scores))
    assert np.isfinite(log_odds(np.array([0.0, 1.0]))).all()


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
    endless = BoundedPruning(1, errors=[0.2, 0.1, 0.0], margin=math.inf, candidates=3)
    assert not endless.wants(1)
    assert endless.decide(1, np.arange(3), np.array([0.1, 0.5, 0.9])).deferred.tolist() == [0, 1, 2]
    for none in (0, -3):
        with pytest.raises(InputError, match=f"at least 1.*{none}"):
            BoundedPruning(none, errors=[0.1], margin=1.0, candidates=3)
        with pytest.raises(InputError, match=str(none)):
            ProgressivePruning(none, candidates=5)
    first = ProgressivePruning(1, threshold=0.0, candidates=3)
    assert [first.wants(layer) for layer in (0, 1, 2)] == [False, True, True]
    assert first.decide(0, np.arange(3), array([0.9, 0.1, 0.1])).deferred.tolist() == [0, 1, 2]
    assert first.decide(1, np.arange(3), array([0.9, 0.1, 0.1])).finished
