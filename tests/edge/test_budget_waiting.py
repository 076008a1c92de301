"""Blocks on their way to a cache: the ledger waits for them before it refuses, where waiting is safe."""

from __future__ import annotations

import sys
import threading

import pytest
from naive.waiting import PATIENCE_S

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded

LIMIT = 1000


class Arriving:
    """A cache whose block cannot be evicted before it has arrived."""

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self.arrived = threading.Event()
        self.waited = 0
        self.lease = budget.reserve("arriving", nbytes)
        budget.add_shrinker("arriving", self.shrink, loss=0.0, settle=self.settle)

    def shrink(self, nbytes: int) -> None:
        if self.arrived.is_set():
            self.lease.release()

    def settle(self) -> bool:
        if self.arrived.is_set():
            return False
        self.waited += 1
        threading.Timer(0.01, self.arrived.set).start()
        return self.arrived.wait(PATIENCE_S)


@pytest.mark.parametrize("grow", ["reserve", "resize", "make_room", "charge"])
def test_blocks_on_their_way_do_not_make_a_limit_too_small(grow: str) -> None:
    """Whatever part of the program asks for memory: it waits for them, and they are evicted."""
    budget = MemoryBudget(LIMIT, baseline=0)
    lease = budget.reserve("own", 1)
    cache = Arriving(budget, 700)
    if grow == "resize":
        lease.resize(500)
    elif grow == "make_room":
        assert budget.make_room(500) >= 500
    elif grow == "charge":
        with budget.charge("loaded", 500):
            pass
    else:
        budget.reserve("other", 500)
    assert (cache.waited, cache.lease.nbytes) == (1, 0)


def test_code_that_locks_the_ledger_is_called_again_after_the_blocks_have_arrived() -> None:
    budget = MemoryBudget(LIMIT, baseline=0)
    cache = Arriving(budget, 700)
    calls = []

    def reserve() -> int:
        with budget.lock:
            calls.append(budget.free)
            return budget.reserve("other", 600).nbytes

    assert budget.waiting(reserve) == 600
    assert (calls, cache.waited) == ([300, 300], 1)
    with budget.lock, pytest.raises(BudgetExceeded):
        budget.waiting(reserve)
    assert len(calls) == 3


def test_no_waiting_where_others_would_wait_for_this_thread() -> None:
    """With the lock of this ledger or of another, or where the caller takes what is free at once."""
    budget, device = MemoryBudget(LIMIT, baseline=0), MemoryBudget(LIMIT, part=True)
    cache = Arriving(budget, 700)
    with budget.lock, pytest.raises(BudgetExceeded):
        budget.reserve("other", 500)
    with device.lock, pytest.raises(BudgetExceeded):
        budget.reserve("other", 500)
    with pytest.raises(BudgetExceeded):
        budget.reserve("other", 500, wait=False)
    assert cache.waited == 0
    with pytest.raises(BudgetExceeded):
        budget.reserve("too large even afterwards", 2 * LIMIT)
    assert cache.waited == 1


@pytest.mark.parametrize("ask", ["reserve", "make_room"])
def test_a_reader_that_never_rests_does_not_hold_up_a_refusal(ask: str) -> None:
    """There is always another block on its way; a reservation waits a few times, and then it is refused."""
    budget = MemoryBudget(LIMIT, baseline=0)
    waited = []
    budget.add_shrinker("reader", lambda nbytes: None, loss=0.0, settle=lambda: not waited.append(1))
    if ask == "make_room":
        assert budget.make_room(2 * LIMIT) == LIMIT
    else:
        with pytest.raises(BudgetExceeded):
            budget.reserve("too large", 2 * LIMIT)
    assert 0 < len(waited) < 10


def test_ledgers_are_opened_while_others_wait() -> None:
    """The set of all ledgers changes while another thread looks through it."""
    ended = threading.Event()

    def open_and_forget() -> None:
        while not ended.is_set():
            MemoryBudget(1, part=True)

    opening = threading.Thread(target=open_and_forget)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    opening.start()
    try:
        budget = MemoryBudget(LIMIT, part=True)
        for _ in range(2000):
            with pytest.raises(BudgetExceeded):
                budget.reserve("too large", 2 * LIMIT)
    finally:
        ended.set()
        sys.setswitchinterval(before)
        opening.join()
