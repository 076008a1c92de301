"""Hit rates against dice, placements against trying every one, drift against counting by hand."""

from __future__ import annotations

import math
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from edge.curve import Curve
from edge.drift import DriftMonitor
from edge.errors import InputError
from edge.hit_rates import incomplete_beta, tail_hit_rate
from edge.placement import AccessProfile, SearchModel, hit_rate_to_coverage, partition


def skewed(nlist: int = 200, queries: int = 400, nprobe: int = 16, skew: float = 0.7) -> AccessProfile:
    """Queries that probe a neighbourhood of a popular cluster."""
    random = np.random.default_rng(1)
    popular = random.zipf(1 + skew, queries) % nlist
    probes = (popular[:, None] + random.permutation(nprobe * 2)[:nprobe]) % nlist
    return AccessProfile.measure(probes.astype(np.int64), random.integers(500, 2000, nlist).astype(np.int64))


def density(a: float, b: float, x: np.ndarray) -> np.ndarray:
    return np.exp((a - 1) * np.log(x) + (b - 1) * np.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 3), (0.5, 0.5), (30, 4), (200, 100)])
def test_the_beta_distribution_is_the_integral_of_its_density(a: float, b: float) -> None:
    edges = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 200_001))
    middles = (edges[1:] + edges[:-1]) / 2
    cumulative = np.concatenate(([0.0], np.cumsum(density(a, b, middles) * np.diff(edges))))
    at = [1000, 50_000, 100_000, 150_000, 199_000]
    assert incomplete_beta(a, b, edges[at]) == pytest.approx(cumulative[at], abs=2e-3)
    assert incomplete_beta(a, b, np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


@given(st.floats(0.05, 60), st.floats(0.05, 60))
def test_the_beta_distribution_mirrors_and_rises(a: float, b: float) -> None:
    x = np.linspace(0, 1, 41)
    value = incomplete_beta(a, b, x)
    assert np.all(np.diff(value) >= -1e-9)
    assert value == pytest.approx(1 - incomplete_beta(b, a, 1 - x), abs=1e-8)


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (0.3, 0.2), (40.0, 10.0), (5.0, 0.5)])
def test_the_tail_hit_rate_is_what_dice_show(a: float, b: float, batch: int) -> None:
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    rolled = np.random.default_rng(3).beta(a, b, (40_000, batch)).min(axis=1)
    error = 5 * rolled.std() / math.sqrt(len(rolled))
    assert tail_hit_rate(mean, variance, batch) == pytest.approx(rolled.mean(), abs=error + 1e-4)


def test_the_tail_hit_rate_is_the_papers_integral() -> None:
    a, b, batch = 6.0, 4.0, 12
    x = (np.arange(200_000) + 0.5) / 200_000
    f = density(a, b, x)
    cumulative = np.cumsum(f) / 200_000
    expected = float(np.sum(batch * x * f * (1 - cumulative) ** (batch - 1)) / 200_000)
    assert tail_hit_rate(0.6, a * b / (100 * 11), batch) == pytest.approx(expected, abs=1e-4)


@settings(max_examples=60)
@given(st.floats(0, 1), st.floats(0, 0.3), st.integers(1, 200))
def test_the_tail_hit_rate_is_a_rate_below_the_mean(mean: float, variance: float, batch: int) -> None:
    rate = tail_hit_rate(mean, variance, batch)
    assert -1e-9 <= rate <= mean + 2e-3
    assert tail_hit_rate(mean, variance, batch + 1) <= rate + 1e-9


@pytest.mark.parametrize(("mean", "variance", "batch"), [(-0.1, 0, 1), (1.1, 0, 1), (0.5, -1, 1), (0.5, 0.1, 0)])
def test_impossible_hit_rates_are_refused(mean: float, variance: float, batch: int) -> None:
    with pytest.raises(InputError):
        tail_hit_rate(mean, variance, batch)


def test_a_profile_counts_what_was_probed() -> None:
    probes = np.array([[2, 0], [2, 1], [2, 0], [2, 0]])
    profile = AccessProfile.measure(probes, np.array([10, 20, 30, 40]))
    assert profile.clusters.tolist() == [2, 0, 1, 3]
    assert profile.share.tolist() == [0, 4 / 8, 7 / 8, 1, 1]
    assert profile.nbytes.tolist() == [0, 30, 40, 60, 100]
    assert profile.hit_rate(0.25) == 0.5
    assert profile.hit_rate(0.375) == (0.5 + 7 / 8) / 2
    assert profile.index_nbytes(0.5) == 40
    assert profile.hottest(0.26).tolist() == [2, 0]
    assert profile.hottest(0.0).tolist() == []
    assert profile.spread == 0, "every query hits one of its two"
    with pytest.raises(InputError):
        AccessProfile.measure(np.zeros((0, 4), np.int64), np.array([1]))


def test_the_spread_is_the_variance_between_queries_at_a_half() -> None:
    profile = AccessProfile.measure(np.array([[0, 0], [1, 1], [0, 0], [1, 1]]), np.array([1, 1]))
    assert profile.spread == pytest.approx(0.25), "half of the queries hit always, half never"
    assert profile.variance(0.5) == pytest.approx(0.25)
    assert profile.variance(0.1) == pytest.approx(0.09)


@given(st.floats(-0.5, 1.0), st.integers(1, 64))
@settings(max_examples=40)
def test_coverage_is_the_smallest_that_reaches_the_rate(wanted: float, batch: int) -> None:
    profile = skewed()
    coverage = hit_rate_to_coverage(profile, wanted, batch)

    def rate(rho: float) -> float:
        mean = profile.hit_rate(rho)
        return tail_hit_rate(mean, profile.variance(mean), batch)

    assert 0 <= coverage <= 1
    if wanted <= 0:
        assert coverage == 0
        return
    assert rate(coverage) >= wanted - 1e-6
    if coverage > 1e-3:
        assert rate(coverage - 1e-3) <= wanted + 1e-2


@settings(max_examples=12)
@given(
    deadline=st.floats(0.01, 1.0),
    throughput=st.floats(5, 200),
    coarse=st.floats(0.0005, 0.005),
    scan=st.floats(0.001, 0.05),
    memory=st.integers(200_000, 2_000_000),
)
def test_the_placement_is_the_smallest_that_meets_the_deadline(
    deadline: float, throughput: float, coarse: float, scan: float, memory: int
) -> None:
    profile = skewed()
    batches = (1, 8, 64, 256)
    model = SearchModel(
        Curve(batches, tuple(coarse * (1 + b / 64) for b in batches)),
        Curve(batches, tuple(scan * (1 + b / 8) for b in batches)),
    )
    found = partition(profile, model, deadline=deadline, throughput=throughput, memory=memory)
    assert 0 <= found.coverage <= 1
    assert found.nbytes == pytest.approx(profile.index_nbytes(found.coverage), abs=1)
    seconds = deadline / 2

    def meets(rho: float) -> bool:
        left = throughput * max(0.0, memory - profile.index_nbytes(rho)) / memory
        mean = profile.hit_rate(rho)
        for batch in {max(1, math.ceil(seconds * left)), max(1, math.floor(seconds * left))}:
            limit = seconds if batch >= seconds * left else min(seconds, batch / left)
            worst = tail_hit_rate(mean, profile.variance(mean), batch)
            if model.seconds(batch, worst) <= limit:
                return True
        return False

    every = [rho for rho in np.linspace(0, 1, 101).tolist() if meets(rho)]
    if not every:
        assert found.coverage > 0.99
        return
    assume(found.coverage < 1)
    assert found.coverage == pytest.approx(every[0], abs=0.03)


def test_an_impossible_deadline_is_said_to_be_impossible() -> None:
    model = SearchModel(Curve((1,), (1.0,)), Curve((1,), (1.0,)))
    found = partition(skewed(), model, deadline=0.1, throughput=10, memory=10**6)
    assert not found.feasible
    easy = partition(skewed(), model, deadline=100.0, throughput=1, memory=10**6)
    assert (easy.feasible, easy.coverage, easy.nbytes, easy.throughput) == (True, 0.0, 0, 1)
    with pytest.raises(InputError):
        partition(skewed(), model, deadline=0, throughput=1, memory=1)


def test_a_tighter_deadline_never_takes_less_memory() -> None:
    model = SearchModel(Curve((1, 64), (0.001, 0.01)), Curve((1, 64), (0.1, 0.8)))
    taken = [
        partition(skewed(), model, deadline=deadline, throughput=40, memory=10**6).nbytes
        for deadline in (0.9, 0.4, 0.3, 0.2, 0.15)
    ]
    assert taken == sorted(taken)
    assert taken[0] < taken[-1]


def test_a_model_without_scan_time_needs_no_hits() -> None:
    model = SearchModel(lambda batch: 0.1, lambda batch: 0.0)
    assert model.needed_hit_rate(1, 0.2) == 0
    assert model.needed_hit_rate(1, 0.05) == math.inf


@pytest.mark.parametrize(
    ("kept", "hit_rate", "outdated"), [(0.5, 0.5, True), (0.5, 0.75, False), (0.95, 0.5, False), (1.0, 0.8, False)]
)
def test_a_placement_is_outdated_when_it_is_slow_and_misses(kept: float, hit_rate: float, outdated: bool) -> None:
    monitor = DriftMonitor(4, 0.8, period=20)
    for turn in range(2):
        for i in range(20):
            drift = monitor.record(np.array([1, 3]), hit_rate, kept=i < kept * 20)
            assert (drift is None) == (i < 19)
            if i == 9:
                assert monitor.frequencies().tolist() == [0, 10, 0, 10]
        assert drift is not None, turn
        assert (drift.requests, drift.outdated) == (20, outdated)
        assert drift.hit_rate == pytest.approx(hit_rate)
        assert drift.attainment == pytest.approx(kept)
        assert drift.frequencies.tolist() == [0, 20, 0, 20], "a new placement is made of these"
        assert monitor.frequencies().tolist() == [0, 0, 0, 0]


def test_requests_of_several_threads_are_all_counted() -> None:
    monitor = DriftMonitor(2, 0.5, period=10**6)

    def work() -> None:
        for _ in range(500):
            monitor.record(np.array([0]), 0.5, kept=True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert monitor.frequencies().tolist() == [2000, 0]


def test_a_model_left_without_memory_is_not_feasible() -> None:
    profile = skewed()
    model = SearchModel(lambda batch: 0.0, lambda batch: 10.0)
    found = partition(profile, model, deadline=0.002, throughput=10, memory=int(profile.nbytes[-1]) // 2)
    assert found.throughput == 0
    assert not found.feasible
