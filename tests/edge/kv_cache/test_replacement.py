"""The rank of cached states: frequency, cost and age for PGDSF, one of them for the others."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from naive.policies import LFU, LRU, POLICIES

from edge.kv_cache.prefix_tree import PGDSF, Usage


def usage_of(frequency: int, *costs: float) -> Usage:
    usage = Usage()
    for cost in costs:
        usage.missed(cost)
    for _ in range(frequency):
        usage.requested()
    return usage


def test_cost_is_the_average_over_those_who_computed() -> None:
    usage = usage_of(5, 0.010, 0.020, 0.060)
    assert usage.cost == pytest.approx(0.030)
    assert usage.frequency == 5
    assert Usage().cost == 0.0


def test_pgdsf_is_clock_plus_frequency_times_cost() -> None:
    policy = PGDSF()
    assert policy.used(usage_of(4, 0.5)) == pytest.approx(2.0)
    policy.evicted(3.0)
    assert policy.used(usage_of(4, 0.5)) == pytest.approx(5.0)


def test_the_clock_is_the_highest_priority_ever_evicted() -> None:
    policy = PGDSF()
    for priority in (2.0, 5.0, 3.0):
        policy.evicted(priority)
    assert policy.clock == 5.0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_resumed_tier_evicts_what_it_would_have_and_ages_it(priorities: list[float]) -> None:
    policy = PGDSF()
    policy.resumed(priorities)
    newcomer = policy.used(usage_of(0))
    assert newcomer == min(priorities), "what comes anew is worth no less than the least, and no more than it must"


def test_an_empty_tier_resumes_at_zero() -> None:
    policy = PGDSF()
    policy.resumed([])
    assert policy.clock == 0.0


def test_lru_ranks_by_the_order_of_use_across_runs() -> None:
    policy = LRU()
    first, second = policy.used(usage_of(9)), policy.used(usage_of(1))
    assert first < second
    later = LRU()
    later.resumed([first, second])
    assert later.used(usage_of(1)) > second


def test_lfu_ranks_by_frequency_alone() -> None:
    policy = LFU()
    assert policy.used(usage_of(3, 9.9)) > policy.used(usage_of(2, 99.0))
    policy.evicted(100.0)
    assert policy.used(usage_of(3)) == 3.0


def test_policies_are_found_by_name() -> None:
    assert {name: type(make()) for name, make in POLICIES.items()} == {"pgdsf": PGDSF, "lru": LRU, "lfu": LFU}
