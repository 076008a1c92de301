"""The right bytes at every width, in every pass and after failures; and no read too many."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.source import MemorySource, numbered_blocks
from naive.waiting import PATIENCE_S
from naive.window import SIZE, WindowRig

from edge.blocks import BlockId
from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, StorageError
from edge.link import Lane
from edge.streaming.window import SLIDING, SlidingWindow


@settings(max_examples=60)
@given(data=st.data(), blocks=st.integers(1, 9), early=st.lists(st.integers(0, 9), max_size=5), announced=st.booleans())
def test_every_width_yields_the_right_bytes_in_passes_of_any_length(
    data: st.DataObject, blocks: int, early: Sequence[int], announced: bool
) -> None:
    width = data.draw(st.integers(min(SLIDING, blocks), blocks))
    rig = WindowRig(blocks, width)
    try:
        assert rig.window.buffers == width
        assert rig.window.fully_resident == (width == blocks)
        for stop in [*early, blocks, blocks]:
            if announced:
                rig.window.start()
            rig.run(stop)
    finally:
        rig.close()
    assert (rig.budget.used, rig.window.buffers) == (0, 0)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
def test_reads_per_pass_are_the_blocks_not_pinned(rigs: list[WindowRig], blocks: int) -> None:
    for width in range(min(SLIDING, blocks), blocks + 1):
        rigs.append(rig := WindowRig(blocks, width))
        pinned = blocks if width == blocks else width - SLIDING
        assert rig.window.pinned == pinned
        rig.window.start()
        rig.run()
        assert rig.reads() == list(range(blocks)), "the first pass reads everything once, in order"
        for _ in range(3):
            rig.window.start()
            rig.run()
            assert rig.reads() == list(range(pinned, blocks)), f"width {width} of {blocks}"


@pytest.mark.parametrize("ask", ["start", "prefetch"])
def test_blocks_are_asked_for_before_they_are_wanted(rigs: list[WindowRig], ask: str) -> None:
    rigs.append(rig := WindowRig(5, 3))
    getattr(rig.window, ask)()
    assert rig.reads() == [0, 1, 2]
    with rig.window.block(0) as view:
        assert np.frombuffer(view, np.uint8).ctypes.data % 64 == 0, "buffers begin at a cache line"
        assert rig.reads() == []
    assert rig.reads() == []
    with rig.window.block(1):
        assert rig.reads() == []
    assert rig.reads() == [3]


def test_no_memory_is_taken_before_the_first_pass(rigs: list[WindowRig]) -> None:
    source = MemorySource(numbered_blocks([SIZE] * 4))
    budget = MemoryBudget(2 * SIZE, baseline=0)
    with Lane() as lane:
        window = SlidingWindow(source, list(source.blocks), lane, budget)
        assert (budget.used, window.buffers) == (0, 0)
        window.prefetch()
        assert (budget.used, source.reads) == (0, [])
        with window.block(0) as view:  # a pass that nobody announced
            assert bytes(view) == source.blocks[BlockId("layer", 0)]
            assert budget.used == 2 * SIZE
        window.close()


def test_what_is_needed_sooner_is_read_sooner_even_if_the_lane_was_busy(rigs: list[WindowRig]) -> None:
    """Hidden states go first on the lane, so that blocks asked for at different moments wait there together."""
    rigs.append(rig := WindowRig(6, 4))
    rig.run()
    rig.reads()
    rig.source.gate.clear()
    rig.source.entered.clear()
    rig.window.start()
    assert rig.source.entered.wait(PATIENCE_S)  # block 2 is being read, block 3 waits
    released = threading.Event()
    rig.lane.submit("hidden states", lambda: int(released.wait(PATIENCE_S)), 1, priority=-1.0)
    rig.source.gate.set()
    for index in range(3):
        with rig.window.block(index):
            pass
    released.set()  # blocks 3 and 4 wait
    assert rig.reads() == [2, 3, 4]


def test_a_pass_that_ends_early_wastes_no_more_than_what_was_under_way(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(8, 4))
    rig.run(5)
    assert rig.reads() == [0, 1, 2, 3, 4, 5, 6]
    rig.window.start()
    rig.run()
    assert rig.reads() == [2, 3, 4, 5, 6, 7]


def test_widening_takes_only_what_is_free_and_keeps_what_is_there(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(6, 6))
    other = rig.budget.reserve("other", 3 * SIZE)
    assert rig.window.buffers == 3
    rig.run()
    rig.reads()
    other.resize(SIZE)
    rig.window.widen()
    assert (rig.window.buffers, rig.budget.free) == (5, 0)
    rig.run()
    assert rig.reads() == [1, 2, 3, 4, 5], "block 0 was pinned already"
    rig.run()
    assert rig.reads() == [3, 4, 5]
    other.release()
    rig.window.widen()
    rig.run()
    rig.reads()
    rig.run()
    assert rig.reads() == []


@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("victim", range(5))
def test_a_failing_read_is_raised_and_the_window_works_again(rigs: list[WindowRig], width: int, victim: int) -> None:
    rigs.append(rig := WindowRig(5, width))
    rig.source.broken = {BlockId("layer", victim)}
    for _ in range(2):
        with pytest.raises(StorageError, match=f"layer.{victim}"):
            rig.run()
        rig.check()
    rig.source.broken = set()
    for _ in range(2):
        rig.run()
    rig.reads()
    rig.run()
    assert len(rig.reads()) == 5 - rig.window.pinned


@pytest.mark.parametrize("width", [2, 3, 5])
def test_a_failed_read_ahead_is_not_held_against_a_later_pass(rigs: list[WindowRig], width: int) -> None:
    """The disk failed on a block that an early end never asked for; when it is wanted, the disk is asked again."""
    rigs.append(rig := WindowRig(5, width))
    rig.source.broken = {BlockId("layer", 1)}
    rig.run(1)
    rig.settle()
    rig.source.broken = set()
    rig.window.start()
    rig.run()


def test_an_error_in_the_callers_work_passes_through(rigs: list[WindowRig]) -> None:
    for width in (2, 4):
        rigs.append(rig := WindowRig(4, width))
        for index in range(4):
            with pytest.raises(KeyError), rig.window.block(index):
                raise KeyError
            rig.check()
        rig.run()


def test_close_gives_everything_back_even_while_blocks_arrive(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 3))
    rig.source.gate.clear()
    rig.window.start()
    assert rig.source.entered.wait(PATIENCE_S)
    closer = threading.Thread(target=rig.window.close)
    closer.start()
    rig.source.gate.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert (rig.budget.used, rig.budget.holders()) == (0, {})
    rig.settle()
    gc.collect()
    assert rig.source.buffers_alive() == 0
    rig.budget.reserve("other", rig.budget.limit)  # and no shrinker of a closed window is in the way


def test_a_budget_without_room_for_two_buffers_is_refused() -> None:
    source = MemorySource(numbered_blocks([SIZE] * 4))
    with Lane() as lane:
        budget = MemoryBudget(2 * SIZE - 1, baseline=0)
        with pytest.raises(BudgetExceeded) as caught:
            SlidingWindow(source, list(source.blocks), lane, budget).start()
        assert caught.value.needed == 2 * SIZE
        assert budget.used == 0
        single = SlidingWindow(source, list(source.blocks)[:1], lane, budget)
        single.start()
        assert single.buffers == 1


def test_a_resident_window_hides_no_transfer_that_did_not_take_place(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 4))
    rig.run()
    once = rig.lane.trace.snapshot()
    rig.run()
    again = rig.lane.trace.snapshot()
    for counter in ("disk.hidden_s", "disk.busy_s", "disk.bytes"):
        assert again[counter] == once[counter]


def test_the_prefix_of_the_next_pass_can_wait(rigs: list[WindowRig], monkeypatch: pytest.MonkeyPatch) -> None:
    rigs.append(rig := WindowRig(5, 3))
    rig.window.finish()
    rig.budget.reserve("other", SIZE).release()
    rig.window.start()
    asked: list[tuple[int, float]] = []
    fetch = rig.lane.fetch
    monkeypatch.setattr(
        rig.lane,
        "fetch",
        lambda source, block, into, priority: (
            asked.append((block.index, priority)) or fetch(source, block, into, priority=priority)
        ),
    )
    for index in range(3):
        with rig.window.block(index):
            if index == 2:
                rig.window.widen()
    assert (0, 1.0) in asked
    assert {(3, 0.0), (4, 0.0)} <= set(asked)


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
