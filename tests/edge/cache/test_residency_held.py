"""Blocks that are held: others make room for them, and they stay until a reservation would be refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from naive.residing import CHARGE, SIZE, Rig

from edge.cache.residency import Residency
from edge.errors import BudgetExceeded


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(4)
    yield made
    made.residency.close()
    made.lane.close()
    assert made.budget.used == 0


def hold(rig: Rig, *keys: int, beside: int = 0) -> int:
    count = rig.residency.hold([(key, SIZE, rig.fetch(key, 2.0)) for key in keys], beside)
    rig.settle()
    return count


def test_misses_and_predictions_leave_held_blocks_alone(rig: Rig) -> None:
    rig.load(0)
    assert hold(rig, 0, 1, 2) == 3
    for key in (3, 4, 5):
        rig.next_round()
        rig.load(key)
    assert set(rig.residency.keys()) == {0, 1, 2, 5}
    assert rig.prefetch(6, 7) is None
    handle = rig.claim(1)
    assert handle is not None
    rig.check(handle, 1)
    handle.release()


def test_the_ledger_takes_held_blocks_last_and_before_it_refuses(rig: Rig) -> None:
    assert hold(rig, 0, 1) == 2
    rig.load(2, 3)
    with rig.budget.reserve("other", 2 * CHARGE):
        assert set(rig.residency.keys()) == {0, 1}
        with rig.budget.reserve("more", CHARGE):
            assert len(rig.residency) == 1
    with pytest.raises(BudgetExceeded):
        rig.budget.reserve("all and more", 5 * CHARGE)
    assert rig.budget.make_room(4 * CHARGE) == 4 * CHARGE


def test_other_caches_shrink_for_held_blocks_whatever_they_save(rig: Rig) -> None:
    other = Residency(rig.budget, name="states")
    handles = [other.admit(key, SIZE, rig.fetch(key), other.begin_round()) for key in (8, 9, 10, 11)]
    for handle in handles:
        assert handle is not None
        handle.wait()
    assert hold(rig, 0, 1) == 0, "they are in use"
    for handle in handles:
        assert handle is not None
        handle.release()
    assert hold(rig, 0, 1, 2, beside=CHARGE) == 3
    assert len(other) == 0
    assert rig.budget.free == CHARGE
    rig.load(4)
    other.close()


def test_as_many_are_held_as_fit_the_first_ones_first(rig: Rig) -> None:
    assert hold(rig, *range(9), beside=CHARGE) == 3
    assert set(rig.residency.keys()) == {0, 1, 2}
    rig.next_round()
    rig.load(7)
    rig.next_round()
    rig.load(8)
    assert set(rig.residency.keys()) == {0, 1, 2, 8}


def test_the_next_choice_replaces_the_one_before(rig: Rig) -> None:
    assert hold(rig, 0, 1, 2, 3) == 4
    assert hold(rig, 2, 5, 6) == 3
    assert {2, 5, 6} < set(rig.residency.keys())
    rig.next_round()
    rig.load(7)
    assert {2, 5, 6} < set(rig.residency.keys())
    assert hold(rig) == 0
    for key in (8, 9, 10, 11):
        rig.next_round()
        rig.load(key)
    assert set(rig.residency.keys()) == {8, 9, 10, 11}


def test_a_held_block_that_is_needed_before_it_came_crosses_at_once(rig: Rig) -> None:
    rig.source.gate.clear()
    first = rig.admit(5)
    assert rig.residency.hold([(0, SIZE, rig.fetch(0, 2.0)), (1, SIZE, rig.fetch(1, 2.0))], 0) == 2
    wanted = rig.claim(1)
    assert wanted is not None
    assert first is not None
    rig.source.gate.set()
    rig.check(wanted, 1)
    wanted.release()
    first.release()
    rig.settle()
