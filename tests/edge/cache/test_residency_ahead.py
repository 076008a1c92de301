"""Blocks fetched on a prediction, and blocks kept between rounds."""

from __future__ import annotations

import pytest
from naive.residency import hotness
from naive.residing import CHARGE, SIZE, Rig
from naive.waiting import PATIENCE_S

from edge.blocks import BlockId
from edge.cache.cached_block import DecayedHotness
from edge.errors import BudgetExceeded


def test_predicted_blocks_are_not_pushed_out_by_misses_but_by_the_ledger(rig: Rig) -> None:
    rig.load(0)
    assert rig.prefetch(1, 2) == 2 * SIZE
    rig.settle()
    rig.next_round()
    rig.load(3)
    assert set(rig.residency.keys()) == {1, 2, 3}
    with rig.budget.reserve("other", 2 * CHARGE):
        assert len(rig.residency) == 1
        assert 3 not in rig.residency, "what is not predicted goes first"


def test_the_protection_is_each_owners_own(rig: Rig) -> None:
    rig.prefetch(0, 1, owner="a")
    rig.prefetch(1, 2, owner="b")
    rig.settle()
    rig.residency.unguard("a", [0, 1, 2])
    rig.residency.unguard("a", [0, 1, 2])
    rig.next_round()
    assert rig.admit(3) is not None
    assert set(rig.residency.keys()) == {1, 2, 3}
    assert rig.admit(4) is None


def test_a_prediction_is_fetched_whole_or_not_at_all(rig: Rig) -> None:
    rig.load(0)
    locked = rig.claim(0)
    assert rig.prefetch(1, 2, 3) is None
    assert rig.prefetch(0, 1, 2, limit=2 * SIZE - 1) is None
    assert rig.residency.keys() == [0]
    assert rig.prefetch(0, 1, 2, limit=2 * SIZE) == 2 * SIZE, "what is there costs nothing"
    locked.release()


def test_one_predictions_blocks_do_not_make_room_for_each_other() -> None:
    rig = Rig(2)
    rig.load(0)
    rig.next_round()
    assert rig.prefetch(0, 1, 2) is None
    assert rig.prefetch(0, 1) == SIZE
    rig.lane.close()


def test_withdrawn_before_it_began_it_costs_nothing(rig: Rig) -> None:
    rig.source.gate.clear()
    first = rig.admit(5)
    assert rig.source.entered.wait(PATIENCE_S)
    rig.prefetch(0, 1)
    rig.residency.withdraw("p", [0, 1, 5])
    assert rig.residency.keys() == [5]
    assert rig.budget.used == CHARGE
    rig.source.gate.set()
    rig.check(first, 5)
    rig.settle()
    assert [block.index for block in rig.source.reads] == [5]


def test_what_is_predicted_and_then_needed_is_asked_for_again_ahead_of_predictions(rig: Rig) -> None:
    rig.source.gate.clear()
    blocked = rig.admit(5)
    assert rig.source.entered.wait(PATIENCE_S)
    rig.prefetch(0, 1)
    handle = rig.claim(1)
    rig.residency.withdraw("p", [0, 1])
    rig.source.gate.set()
    rig.check(handle, 1)
    rig.check(blocked, 5)
    rig.settle()
    assert [block.index for block in rig.source.reads] == [5, 1]
    assert (rig.count("ahead"), rig.count("ahead_used")) == (2, 1)


def test_a_prediction_whose_read_failed_is_not_held_against_the_search(rig: Rig) -> None:
    rig.source.broken = {BlockId("layer", 0)}
    rig.prefetch(0)
    rig.settle()
    rig.source.broken = set()
    assert rig.residency.absent([0, 1]) == [0, 1]
    rig.load(0)
    assert rig.residency.nbytes == CHARGE


def test_memory_taken_by_the_ledger_withdraws_predictions_that_have_not_begun(rig: Rig) -> None:
    rig.source.gate.clear()
    running = rig.admit(5)
    assert rig.source.entered.wait(PATIENCE_S)
    rig.prefetch(0, 1)
    with rig.budget.reserve("other", 2 * CHARGE):
        assert rig.residency.keys() == [5]
        with pytest.raises(BudgetExceeded):
            rig.budget.reserve("more", 1)
    rig.source.gate.set()
    rig.check(running, 5)


def test_a_share_of_the_room_is_kept_after_a_round(rig: Rig) -> None:
    rig.load(0, 1, 2)
    rig.prefetch(2)
    rig.residency.trim(0.67)
    assert set(rig.residency.keys()) == {1, 2}
    rig.residency.trim(0.0)
    assert rig.residency.keys() == [2]


def test_discarded_blocks_are_gone_unless_somebody_reads_them(rig: Rig) -> None:
    rig.load(0, 1)
    held = rig.claim(0)
    rig.residency.discard([0, 1, 9])
    assert rig.residency.keys() == [0]
    held.release()


def test_a_block_that_was_fetched_ahead_and_used_once_is_as_hot_as_one_that_was_used_once() -> None:
    policy = DecayedHotness()
    rig = Rig(policy=policy)
    rig.prefetch(0)
    rig.settle()
    rig.next_round()
    rig.load(0, 1)
    assert hotness(policy, 0) == hotness(policy, 1)
    rig.lane.close()
