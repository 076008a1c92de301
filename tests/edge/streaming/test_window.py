"""The right bytes at every width, in every pass and after failures; and no read too many."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.source import MemorySource, numbered_blocks
from naive.waiting import PATIENCE_S
from naive.window import SIZE, WindowRig

from edge.blocks import BlockId
from edge.budget import MemoryBudget
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


def test_the_next_block_is_asked_for_while_one_is_in_use(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 2))
    with rig.window.block(0):
        assert rig.reads() == [0, 1]
    assert rig.reads() == [2]
    with rig.window.block(1):
        assert rig.reads() == []


@pytest.mark.parametrize("ask", ["start", "prefetch"])
def test_the_first_blocks_are_asked_for_before_they_are_wanted(rigs: list[WindowRig], ask: str) -> None:
    rigs.append(rig := WindowRig(5, 4))
    getattr(rig.window, ask)()
    assert rig.reads() == [0, 1, 2, 3]
    rig.run()
    assert rig.reads() == [4]


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


def test_a_window_is_never_wider_than_told_nor_than_its_blocks(rigs: list[WindowRig]) -> None:
    narrow, wide = WindowRig(6, 20, widest=3), WindowRig(6, 20)
    rigs += [narrow, wide]
    assert (narrow.window.buffers, narrow.window.pinned) == (3, 1)
    assert (wide.window.buffers, wide.budget.used) == (6, 6 * SIZE)
    narrow.run()


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


def test_buffers_begin_at_a_cache_line(rigs: list[WindowRig]) -> None:
    rigs.append(rig := WindowRig(4, 4))
    for index in range(4):
        with rig.window.block(index) as view:
            assert np.frombuffer(view, np.uint8).ctypes.data % 64 == 0


def test_close_waits_for_the_read_under_way_and_leaves_no_shrinker(rigs: list[WindowRig]) -> None:
    rig = WindowRig(4, 2)
    rig.settle()
    rig.source.gate.clear()
    rig.source.entered.clear()
    with rig.window.block(0):
        pass
    assert rig.source.entered.wait(PATIENCE_S)
    closer = threading.Thread(target=rig.window.close)
    closer.start()
    closer.join(0.05)
    waited = closer.is_alive()
    rig.source.gate.set()
    closer.join(PATIENCE_S)
    rig.lane.close()
    assert waited, "the lane still writes into the buffer"
    assert rig.budget._caches == []


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
