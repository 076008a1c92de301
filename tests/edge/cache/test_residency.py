"""Blocks in memory: hits, evictions, what is held, what is fetched ahead, and what is learned about it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.residency import LeastRecent, Lru, hotness
from naive.residing import CHARGE, SIZE, Rig
from naive.waiting import PATIENCE_S, at_once

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.cache.cached_block import Bytes, DecayedHotness
from edge.cache.residency import Handle, Residency
from edge.errors import BudgetExceeded, StorageError
from edge.link import Ticket


def test_two_who_ask_for_a_block_at_once_share_one_read(rig: Rig) -> None:
    rig.source.gate.clear()
    first, second = rig.admit(0), rig.admit(0)
    assert (first.hit, second.hit, second.ready) == (False, True, False)
    rig.source.gate.set()
    for handle in (first, second, rig.claim(0)):
        rig.check(handle, 0)
        handle.release()
        handle.release()
    assert len(rig.source.reads) == 1
    assert (rig.count("hits"), rig.count("misses")) == (2, 1)


def test_a_bound_of_its_own_holds_beside_the_ledger() -> None:
    rig, asked = Rig(3), list[int]()
    rig.budget.add_shrinker("other", asked.append, loss=0.0)
    with rig.budget.reserve("other", 2 * CHARGE):
        rig.load(0)
        assert rig.admit(1) is None
    assert asked == [], "it never grows at the cost of another cache"
    rig.lane.close()
    rig = Rig(10, capacity=2 * CHARGE)
    rig.load(0, 1)
    assert rig.residency.room == 2 * CHARGE
    rig.next_round()
    rig.load(2)
    assert rig.residency.nbytes == 2 * CHARGE
    small = Residency(MemoryBudget(1 << 20, baseline=0), capacity=SIZE)
    assert small.admit(0, SIZE, rig.fetch(0), 1) is None
    rig.lane.close()


def test_a_block_that_cannot_be_read_is_raised_and_asked_for_again(rig: Rig) -> None:
    rig.source.broken = {BlockId("layer", 0)}
    rig.source.gate.clear()
    first, second = rig.admit(0), rig.claim(0)
    rig.source.gate.set()
    for reader, held in ((first, CHARGE), (second, 0)):
        with pytest.raises(StorageError):
            reader.wait()
        reader.release()
        assert 0 not in rig.residency
        assert rig.budget.used == held, "its memory goes with its last handle"
    rig.source.broken = set()
    rig.load(0)

    def refuse(buffer: Bytes) -> Ticket:
        raise RuntimeError("lane is closed")

    used = rig.budget.used
    with pytest.raises(RuntimeError):
        rig.residency.admit(1, SIZE, refuse, rig.now)
    assert rig.budget.used == used, "a fetch that cannot be asked for leaves no trace"


def test_close_gives_everything_back_while_blocks_arrive(rig: Rig) -> None:
    rig.source.gate.clear()
    rig.admit(0).release()
    assert rig.source.entered.wait(PATIENCE_S)
    rig.admit(1).release()
    closer = threading.Thread(target=rig.residency.close)
    closer.start()
    rig.source.gate.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert (rig.budget.used, rig.budget.holders()) == (0, {})
    rig.budget.reserve("other", rig.budget.limit)


def test_an_evicted_blocks_memory_is_really_free(rig: Rig) -> None:
    rig.load(0, 1, 2)
    with rig.budget.reserve("other", 3 * CHARGE):
        rig.settle()
        gc.collect()
        assert rig.source.buffers_alive() == 0


OPERATION = st.tuples(
    st.sampled_from(["use", "admit", "room", "prefetch", "release", "round", "take", "give", "unguard"]),
    st.integers(0, 7),
    st.integers(0, 7),
)


@settings(max_examples=150)
@given(blocks=st.integers(1, 5), operations=st.lists(OPERATION, max_size=40))
def test_it_keeps_what_a_plain_cache_keeps(blocks: int, operations: list[tuple[str, int, int]]) -> None:
    rig = Rig(blocks)
    twin = Lru(blocks * CHARGE)
    handles: list[tuple[int, Handle]] = []
    other = rig.budget.reserve("other", 0)
    try:
        for name, key, second in operations:
            if name == "use":
                handle = rig.claim(key)
                assert (handle is not None) == twin.use(key, rig.now)
                if handle is not None:
                    handles.append((key, handle))
            elif name in ("admit", "room"):
                there = twin.use(key, rig.now)
                handle = rig.admit(key, evict=name == "admit")
                there = there or twin.admit(key, CHARGE, rig.now, name == "admit")
                assert (handle is not None) == there
                if handle is not None:
                    rig.check(handle, key)
                    handles.append((key, handle))
            elif name == "prefetch":
                limit = 2 * SIZE if second % 3 else SIZE
                asked = rig.prefetch(key, second, limit=limit) if key != second else rig.prefetch(key, limit=limit)
                expected = twin.prefetch({key: CHARGE, second: CHARGE}, limit // SIZE * CHARGE, rig.now)
                assert asked == (None if expected is None else expected // CHARGE * SIZE)
            elif name == "release" and handles:
                key, handle = handles.pop(second % len(handles))
                handle.release()
                twin.held[key].locks -= 1
            elif name == "round":
                rig.next_round()
            elif name == "take":
                rig.settle()
                growth = key * CHARGE // 2
                missing = growth - rig.budget.free
                try:
                    other.resize(other.nbytes + growth)
                    twin.capacity -= growth
                except BudgetExceeded:
                    pass
                if missing > 0:
                    twin.shrink(missing)
            elif name == "give":
                twin.capacity += other.nbytes
                other.release()
            elif name == "unguard":
                rig.residency.unguard("p", [key, second])
                for block in {key, second} & set(twin.held):
                    twin.held[block].guards = 0
            rig.settle()
            assert set(rig.residency.keys()) == set(twin.held)
            assert rig.residency.nbytes == twin.nbytes
            assert rig.budget.used <= rig.budget.limit
        for key, handle in handles:
            rig.check(handle, key)
            handle.release()
        rig.residency.close()
        other.release()
        assert rig.budget.used == 0
    finally:
        rig.lane.close()


@pytest.mark.parametrize("policy", [LeastRecent, DecayedHotness])
def test_threads_share_a_residency(policy: type) -> None:
    rig = Rig(4, policy=policy())
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(150):
            now = rig.residency.begin_round()
            key = int(random.integers(12))
            if random.random() < 0.2:
                rig.prefetch(key, (key + 1) % 12, owner=seed)
                rig.residency.withdraw(seed, [key])
                rig.residency.unguard(seed, [key, (key + 1) % 12])
                continue
            handle = rig.residency.admit(key, SIZE, rig.fetch(key), now)
            if handle is not None:
                with handle:
                    rig.check(handle, key)
            if rig.budget.used > rig.budget.limit:
                wrong.append(rig.budget.used)

    at_once(work, 4)
    assert not wrong
    rig.residency.close()
    assert rig.budget.used == 0
    rig.lane.close()


def test_memory_is_found_when_blocks_have_arrived(rig: Rig) -> None:
    """A block on its way to a cache is evicted when it has arrived, and one that is in use is not waited for."""
    rig.source.gate.clear()
    rig.admit(0).release()
    assert rig.source.entered.wait(PATIENCE_S)
    with pytest.raises(BudgetExceeded):
        rig.budget.reserve("other", rig.budget.limit, wait=False)
    threading.Timer(0.05, rig.source.gate.set).start()
    rig.budget.reserve("other", rig.budget.limit).release()
    assert rig.residency.keys() == []
    rig.source.gate.clear()
    used = rig.admit(1)
    with pytest.raises(BudgetExceeded):
        rig.budget.reserve("other", rig.budget.limit)
    rig.source.gate.set()
    used.release()


def test_a_transfer_does_not_wait_for_transfers(rig: Rig) -> None:
    """A device that needs memory while it receives a block would wait for itself."""
    refused: list[BaseException] = []

    def work() -> int:
        try:
            rig.budget.reserve("device", rig.budget.limit)
        except BudgetExceeded as error:
            refused.append(error)
        return 1

    def fetch(buffer: Bytes) -> Ticket:
        return rig.lane.submit("own", work, SIZE)

    handle = rig.residency.admit(0, SIZE, fetch, rig.now)
    handle.release()
    rig.settle()
    assert len(refused) == 1


def test_whoever_needs_memory_does_not_get_the_error_of_anothers_block(rig: Rig) -> None:
    """Also if it is none of this program's errors, such as a driver's."""
    rig.source.gate.clear()

    def fail() -> int:
        assert rig.source.gate.wait(PATIENCE_S)
        raise ValueError("a driver's")

    handle = rig.residency.admit(0, SIZE, lambda buffer: rig.lane.submit("failing", fail, SIZE), rig.now)
    handle.release()
    threading.Timer(0.05, rig.source.gate.set).start()
    rig.budget.reserve("other", rig.budget.limit).release()
    assert "disk.stall_s" not in rig.lane.trace.snapshot(), "no user of the lane has waited"


@pytest.fixture
def held_rig() -> Iterator[Rig]:
    made = Rig(4)
    yield made
    made.residency.close()
    made.lane.close()
    assert made.budget.used == 0


def hold(held_rig: Rig, *keys: int, beside: int = 0) -> int:
    count = held_rig.residency.hold([(key, SIZE, held_rig.fetch(key, 2.0)) for key in keys], beside)
    held_rig.settle()
    return count


def test_misses_and_predictions_leave_held_blocks_alone(held_rig: Rig) -> None:
    held_rig.load(0)
    assert hold(held_rig, 0, 1, 2) == 3
    for key in (3, 4, 5):
        held_rig.next_round()
        held_rig.load(key)
    assert set(held_rig.residency.keys()) == {0, 1, 2, 5}
    assert held_rig.prefetch(6, 7) is None
    handle = held_rig.claim(1)
    held_rig.check(handle, 1)
    handle.release()


def test_the_ledger_takes_held_blocks_last_and_before_it_refuses(held_rig: Rig) -> None:
    assert hold(held_rig, 0, 1) == 2
    held_rig.load(2, 3)
    with held_rig.budget.reserve("other", 2 * CHARGE):
        assert set(held_rig.residency.keys()) == {0, 1}
        with held_rig.budget.reserve("more", CHARGE):
            assert len(held_rig.residency) == 1
    with pytest.raises(BudgetExceeded):
        held_rig.budget.reserve("all and more", 5 * CHARGE)
    assert held_rig.budget.make_room(4 * CHARGE) == 4 * CHARGE


def test_other_caches_shrink_for_held_blocks_whatever_they_save(held_rig: Rig) -> None:
    other = Residency(held_rig.budget, name="states")
    handles = [other.admit(key, SIZE, held_rig.fetch(key), other.begin_round()) for key in (8, 9, 10, 11)]
    for handle in handles:
        handle.wait()
    assert hold(held_rig, 0, 1) == 0, "they are in use"
    for handle in handles:
        handle.release()
    assert hold(held_rig, 0, 1, 2, beside=CHARGE) == 3
    assert len(other) == 0
    assert held_rig.budget.free == CHARGE
    held_rig.load(4)
    other.close()


def test_as_many_are_held_as_fit_and_the_next_choice_replaces_the_one_before(held_rig: Rig) -> None:
    assert hold(held_rig, *range(9), beside=CHARGE) == 3
    assert held_rig.residency.keys() == [0, 1, 2], "the first ones first"
    assert hold(held_rig, 2, 5, 6) == 3
    assert {2, 5, 6} < set(held_rig.residency.keys())
    held_rig.next_round()
    held_rig.load(7)
    assert {2, 5, 6} < set(held_rig.residency.keys())
    assert hold(held_rig) == 0
    for key in (8, 9, 10, 11):
        held_rig.next_round()
        held_rig.load(key)
    assert set(held_rig.residency.keys()) == {8, 9, 10, 11}


def test_a_held_block_that_is_needed_before_it_came_crosses_at_once(held_rig: Rig) -> None:
    held_rig.source.gate.clear()
    first = held_rig.admit(5)
    assert held_rig.residency.hold([(0, SIZE, held_rig.fetch(0, 2.0)), (1, SIZE, held_rig.fetch(1, 2.0))], 0) == 2
    wanted = held_rig.claim(1)
    held_rig.source.gate.set()
    held_rig.check(wanted, 1)
    wanted.release()
    first.release()
    held_rig.settle()


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


def test_discarded_blocks_are_gone_unless_somebody_reads_them(rig: Rig) -> None:
    rig.load(0, 1)
    held = rig.claim(0)
    rig.residency.discard([0, 1, 9])
    assert rig.residency.keys() == [0]
    held.release()
    rig.load(1, 2)
    rig.prefetch(2)
    rig.residency.trim(0.67)  # a share of the room is kept
    assert set(rig.residency.keys()) == {1, 2}
    rig.residency.trim(0.0)
    assert rig.residency.keys() == [2]


def test_a_block_that_was_fetched_ahead_and_used_once_is_as_hot_as_one_that_was_used_once() -> None:
    policy = DecayedHotness()
    rig = Rig(policy=policy)
    rig.prefetch(0)
    rig.settle()
    rig.next_round()
    rig.load(0, 1)
    assert hotness(policy, 0) == hotness(policy, 1)
    rig.lane.close()


@pytest.mark.parametrize("wanted_by", ["nobody", "another search", "a prediction"])
def test_a_block_is_taken_back_if_nobody_else_wants_it(wanted_by: str) -> None:
    rig = Rig(blocks=4)
    begun, go_on = threading.Event(), threading.Event()

    def occupied() -> int:
        begun.set()
        assert go_on.wait(60)
        return 0

    rig.lane.submit("standing", occupied, 0)
    assert begun.wait(60)
    handle = rig.admit(3)
    assert handle is not None
    other = rig.claim(3) if wanted_by == "another search" else None
    if wanted_by == "a prediction":
        rig.prefetch(3)
    held = rig.budget.used
    taken = rig.residency.recall(handle)
    assert taken == (wanted_by == "nobody")
    assert (3 in rig.residency) == (not taken)
    if taken:
        assert rig.budget.used <= held - SIZE
        assert not rig.residency.recall(handle), "it is released already"
    go_on.set()
    for waiting in [] if taken else [handle, *([other] if other else [])]:
        rig.check(waiting, 3)
        assert not rig.residency.recall(waiting), "it has arrived"
        waiting.release()
    rig.residency.close()
    rig.lane.close()
    assert rig.budget.used == 0
