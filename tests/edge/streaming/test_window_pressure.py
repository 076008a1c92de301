"""A window that gives way at any moment, to any thread, and never holds a byte more than it has leased."""

from __future__ import annotations

import threading
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from naive.waiting import PATIENCE_S
from naive.window import SIZE, WindowRig

from edge.budget import Lease
from edge.errors import BudgetExceeded
from edge.streaming.window import SLIDING


def test_between_passes_every_buffer_can_be_taken_and_within_one_two_stay(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(5, 5))
    rig.run()
    for asked in range(1, 6):
        rig.window.finish()
        with rig.budget.reserve("other", asked * SIZE):
            assert rig.window.buffers == 5 - asked
            rig.check()
            rig.window.prefetch()
            rig.settle()
            if asked <= 3:
                rig.run()
                with pytest.raises(BudgetExceeded):
                    rig.budget.reserve("another", 3 * SIZE)
            else:
                with pytest.raises(BudgetExceeded) as caught:
                    rig.window.start()
                assert caught.value.needed == 5 * SIZE + (asked - 3) * SIZE
        rig.window.finish()
        rig.window.start()
        rig.window.widen()
        assert rig.window.buffers == 5
        rig.run()


def test_a_pass_that_could_not_start_holds_nothing_back(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 4))
    rig.window.finish()
    other = rig.budget.reserve("other", 3 * SIZE)
    assert rig.window.buffers == 1
    with pytest.raises(BudgetExceeded):
        rig.window.start()
    other.resize(4 * SIZE)
    assert rig.window.buffers == 0


def test_a_starting_window_waits_for_blocks_on_their_way_to_other_caches(rigs: list[WindowRig]) -> None:
    """The search of another thread has read ahead into all memory that the smallest limit leaves between passes."""
    rigs.append(rig := WindowRig(4, SLIDING))
    rig.window.finish()
    cache = rig.budget.reserve("lists", SLIDING * SIZE)
    arrived = False

    def settle() -> bool:
        nonlocal arrived
        was, arrived = arrived, True
        return not was

    rig.budget.add_shrinker("lists", lambda nbytes: cache.release() if arrived else None, loss=0.0, settle=settle)
    assert rig.window.buffers == 0
    rig.window.start()
    assert (rig.window.buffers, cache.nbytes) == (SLIDING, 0)
    rig.run()


def test_a_starting_window_takes_from_dearer_caches_not_from_itself(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 4))
    rig.window.finish()
    cache = rig.budget.reserve("cache", 3 * SIZE)  # one buffer is left

    def shrink(nbytes: int) -> int:
        given = min(cache.nbytes, nbytes)
        cache.resize(cache.nbytes - given)
        return given

    rig.budget.add_shrinker("cache", shrink, loss=9.0)
    rig.window.start()
    assert (rig.window.buffers, cache.nbytes) == (2, 2 * SIZE)
    rig.check()
    rig.run()


def test_widening_in_the_middle_of_a_pass(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(6, 6))
    other = rig.budget.reserve("other", 4 * SIZE)
    for index, expected in enumerate(rig.source.blocks.values()):
        with rig.window.block(index) as view:
            if index == 3:
                other.release()
                rig.window.widen()
                assert rig.window.fully_resident
            assert bytes(view) == expected
        rig.check()
    for _ in range(2):
        rig.run()
    assert len(rig.reads()) <= 6 + 6


@settings(max_examples=60)
@given(data=st.data(), blocks=st.integers(3, 9))
def test_pressure_at_any_moment_leaves_the_right_bytes(data: st.DataObject, blocks: int) -> None:
    width = data.draw(st.integers(2, blocks))
    rig = WindowRig(blocks, width)
    leases: list[Lease] = []
    try:
        for _ in range(3):
            for index, expected in enumerate(rig.source.blocks.values()):
                with rig.window.block(index) as view:
                    if data.draw(st.integers(0, 4)) == 0:
                        asked = data.draw(st.integers(1, 3 * SIZE))
                        try:
                            leases.append(rig.budget.reserve("other", asked))
                        except BudgetExceeded:
                            assert rig.window.buffers == SLIDING
                    elif leases and data.draw(st.booleans()):
                        leases.pop().release()
                        rig.window.widen()
                    assert bytes(view) == expected
                rig.check()
        for lease in leases:
            lease.release()
        rig.window.widen()
        rig.run()
        rig.reads()
        rig.run()
        assert len(rig.reads()) == blocks - rig.window.pinned
    finally:
        rig.close()
    assert rig.budget.used == 0


def test_giving_way_takes_the_end_of_the_prefix_not_what_is_needed_next(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(10, 6))
    rig.run()
    rig.reads()
    rig.run(5)
    with rig.window.block(5):
        rig.settle()
        with rig.budget.reserve("other", SIZE):
            assert (rig.window.buffers, rig.window.pinned) == (5, 3)
    for index in range(6, 10):
        with rig.window.block(index):
            pass
    assert rig.reads() == [4, 5, 6, 7, 8, 9], "nothing was thrown away that this pass needed again"
    rig.run()
    assert rig.reads() == [3, 4, 5, 6, 7, 8, 9]


def test_giving_way_between_passes_and_down_to_two_buffers(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(5, 5))
    rig.run()
    rig.reads()
    taken = []
    for buffers in (4, 3, 2):
        taken.append(rig.budget.reserve("other", SIZE))
        assert rig.window.buffers == buffers
        rig.run()
        rig.check()
    with pytest.raises(BudgetExceeded):
        rig.budget.reserve("other", 1)
    rig.reads()
    rig.run()
    assert rig.reads() == [0, 1, 2, 3, 4]


def test_a_window_whose_lane_is_busy_can_still_give_way(rigs: list[WindowRig]) -> None:
    """Buffers that a queued transfer was to fill are given back without waiting for the disk."""
    rigs.append(rig := WindowRig(6, 6))
    rig.source.gate.clear()
    rig.window.start()
    assert rig.source.entered.wait(PATIENCE_S)  # block 0 is being read, the others are queued
    taken = rig.budget.reserve("other", 4 * SIZE)
    assert rig.window.buffers == 2
    rig.source.gate.set()
    taken.release()
    rig.run()


@pytest.mark.parametrize(("act", "held", "free", "asked"), [("widen", 4, 1, 2), ("close", 4, 1, 2), ("start", 5, 2, 3)])
def test_a_window_that_is_changing_neither_blocks_nor_refuses_another_reservation(
    act: str, held: int, free: int, asked: int
) -> None:
    """One thread reserves, which locks the ledger and asks the window; another has the window ask the ledger."""
    rig = WindowRig(8, 8)
    if act == "start":
        rig.window.finish()
    rig.budget.reserve("held", held * SIZE)
    rig.budget.reserve("free", free * SIZE).release()
    outcome: list[Lease] = []

    def change() -> None:
        with suppress(BudgetExceeded):  # the other one was first
            getattr(rig.window, act)()

    changer = threading.Thread(target=change, daemon=True)

    def first(nbytes: int) -> int:
        """Runs inside the other reservation, and lets the window begin to change just then."""
        if changer.ident is None:
            changer.start()
            changer.join(0.1)
        return 0

    rig.budget.add_shrinker("first", first, loss=0.0)
    reserver = threading.Thread(target=lambda: outcome.append(rig.budget.reserve("other", asked * SIZE)), daemon=True)
    reserver.start()
    reserver.join(PATIENCE_S)
    changer.join(PATIENCE_S)
    assert not reserver.is_alive()
    assert not changer.is_alive()
    assert outcome, "refused although the window could have given way"
    rig.close()


def test_one_thread_works_while_others_press_and_let_go(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(6, 6))
    done = threading.Event()

    def press() -> None:
        while not done.is_set():
            with suppress(BudgetExceeded):
                rig.budget.reserve("other", SIZE).release()

    threads = [threading.Thread(target=press, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    finished = []

    def work() -> None:
        for _ in range(60):
            for index, expected in enumerate(rig.source.blocks.values()):
                with rig.window.block(index) as view:
                    assert bytes(view) == expected
            rig.window.widen()
        finished.append(True)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(60)
    done.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert finished
    assert rig.budget.used == rig.window.buffers * SIZE
