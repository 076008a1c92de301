"""The ledger: it always adds up, never passes its limit, and a refusal changes nothing and names a limit that works."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from naive.cache import Cache
from naive.waiting import PATIENCE_S, at_once

from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import ArgumentError, BudgetExceeded
from edge.resident import anonymous_resident, trim_heap

LIMIT = 1000
SIZES = st.integers(0, LIMIT + 200)


class Ledger(RuleBasedStateMachine):
    leases = Bundle("leases")
    caches = Bundle("caches")

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(LIMIT, baseline=100)
        self.held: list[Lease] = []
        self.shrinking: list[Cache] = []
        self.names = 0

    def attempt(self, act: Callable[[], None], owner: str, growth: int, mine: Lease | None = None) -> bool:
        """Runs `act`, which wants `growth` more bytes, and judges a refusal."""
        before = {id(lease): lease.nbytes for lease in self.held}
        cached = sum(cache.lease.nbytes for cache in self.shrinking if cache.lease is not mine)
        fits = growth <= self.budget.free + cached
        if fits:
            act()
            return True
        held = mine.nbytes if mine else 0
        with pytest.raises(BudgetExceeded) as caught:
            act()
        error = caught.value
        assert {id(lease): lease.nbytes for lease in self.held} == before
        assert all(cache.lease.nbytes == 0 for cache in self.shrinking if cache.lease is not mine)
        given = held - mine.nbytes if mine else 0  # a cache that was asked to give way for itself
        assert (error.owner, error.asked, error.free) == (owner, growth + given, self.budget.free)
        for part in (owner, format_size(error.asked), format_size(error.needed, up=True), *self.budget.holders()):
            assert part in str(error)
        assert "\n" not in str(error)
        self.judge_smallest_limit(error)
        return False

    def judge_smallest_limit(self, error: BudgetExceeded) -> None:
        for limit, works in ((error.needed, True), (error.needed - 1, False)):
            again = MemoryBudget(limit, baseline=0)
            for owner, nbytes in self.budget.holders().items():
                again.reserve(owner, nbytes)
            if works:
                again.reserve(error.owner, error.asked)
            else:
                with pytest.raises(BudgetExceeded):
                    again.reserve(error.owner, error.asked)

    @rule(target=leases, nbytes=SIZES)
    def reserve(self, nbytes: int) -> object:
        self.names += 1
        owner = f"owner {self.names}"
        taken: list[Lease] = []
        if self.attempt(lambda: taken.append(self.budget.reserve(owner, nbytes)), owner, nbytes):
            self.held += taken
            assert taken[0].nbytes == nbytes
            return taken[0]
        return None

    @rule(lease=leases, nbytes=SIZES)
    def resize(self, lease: Lease | None, nbytes: int) -> None:
        if lease is not None and self.attempt(lambda: lease.resize(nbytes), lease.owner, nbytes - lease.nbytes):
            assert lease.nbytes == nbytes

    @rule(lease=consumes(leases))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
            lease.release()
            assert lease.nbytes == 0
            self.held.remove(lease)

    @rule(target=caches, nbytes=st.integers(0, 200), loss=st.integers(0, 3), step=st.integers(1, 60))
    def cache(self, nbytes: int, loss: int, step: int) -> object:
        if nbytes > self.budget.free:
            return None
        self.names += 1
        made = Cache(self.budget, f"cache {self.names}", nbytes, loss, step)
        self.shrinking.append(made)
        return made

    @rule(cache=caches, nbytes=SIZES)
    def grow_cache(self, cache: Cache | None, nbytes: int) -> None:
        """A cache that grows may be asked to give way itself, in the middle of its own growth."""
        if cache is not None and cache in self.shrinking:
            self.attempt(
                lambda: cache.lease.resize(nbytes), cache.lease.owner, nbytes - cache.lease.nbytes, cache.lease
            )

    @rule(cache=consumes(caches))
    def forget_cache(self, cache: Cache | None) -> None:
        if cache is not None:
            cache.remove()
            cache.remove()
            self.shrinking.remove(cache)
            self.held.append(cache.lease)

    @invariant()
    def adds_up(self) -> None:
        leases = [*self.held, *(cache.lease for cache in self.shrinking)]
        assert self.budget.used == 100 + sum(lease.nbytes for lease in leases)
        assert self.budget.used == sum(self.budget.holders().values())
        assert self.budget.used + self.budget.free == LIMIT
        assert 0 <= self.budget.used <= LIMIT


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestLedger = Ledger.TestCase


def test_a_shrinker_that_raises_leaves_the_ledger_whole() -> None:
    budget = MemoryBudget(100, baseline=0)

    def fail(nbytes: int) -> int:
        raise RuntimeError("no")

    budget.add_shrinker("broken", fail, loss=0.0)
    with pytest.raises(RuntimeError):
        budget.reserve("engine", 101)
    assert (budget.used, budget.holders()) == (0, {})
    budget.reserve("engine", 100)
    budget = MemoryBudget(100, baseline=0)
    budget.add_shrinker("boaster", lambda nbytes: nbytes, loss=0.0)
    honest = Cache(budget, "honest", 60, loss=1.0)
    budget.reserve("engine", 80)
    assert honest.lease.nbytes == 20, "the ledger counts, not the number that a shrinker returns"


def test_a_limit_below_the_process_itself_is_refused_at_once() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        MemoryBudget(1_000_000)
    assert caught.value.owner == "process"
    MemoryBudget(int(caught.value.needed * 1.05))
    none: Any
    for none in ("300MB", 3e8, None):
        with pytest.raises(ArgumentError, match="number of bytes"):
            MemoryBudget(none)


def test_a_lease_ends_with_its_block_and_negative_sizes_are_refused() -> None:
    budget = MemoryBudget(100, baseline=0)
    with budget.reserve("a", 60) as lease:
        assert budget.holders() == {"a": 60}
        with pytest.raises(ValueError, match="-1"):
            lease.resize(-1)
    assert budget.used == 0
    for owner, nbytes in (("a", 10), ("b", 30), ("a", 12)):
        budget.reserve(owner, nbytes)
    assert list(budget.holders().items()) == [("b", 30), ("a", 22)], "added up by owner, largest first"


def test_charge_measures_what_was_really_allocated() -> None:
    """Free heap pages from before the block are not growth inside it, and must not be set against it."""
    crumbs = [bytearray(5000) for _ in range(8000)]
    kept = crumbs[::50]  # scattered over the heap, so that freeing the others gives no page back by itself
    del crumbs
    budget = MemoryBudget(10**12)
    with budget.charge("tables") as lease:
        tables = np.ones(48_000_000, np.uint8)
    assert lease.nbytes == pytest.approx(tables.nbytes, abs=1_500_000)
    assert budget.holders()["tables"] == lease.nbytes
    lease.release()
    assert "tables" not in budget.holders()
    assert len(kept) == 160


def test_charge_of_more_than_is_free_is_refused_with_its_size() -> None:
    trim_heap()
    budget = MemoryBudget(anonymous_resident() + 8_000_000)
    loaded = []
    with pytest.raises(BudgetExceeded) as caught, budget.charge("tables"):
        loaded.append(np.ones(48_000_000, np.uint8))
    assert caught.value.asked == pytest.approx(48_000_000, abs=1_500_000)
    assert "tables" not in budget.holders()
    with pytest.raises(KeyError), budget.charge("tables"):
        raise KeyError
    assert "tables" not in budget.holders()


def test_relieve_asks_caches_only_for_what_reality_is_over() -> None:
    asked: list[int] = []

    def give(nbytes: int) -> int:
        asked.append(nbytes)
        ballast.clear()
        return nbytes

    ballast = [np.ones(48_000_000, np.uint8)]
    # Memory that earlier tests left on the heap goes first, and would be enough.
    gc.collect()
    trim_heap()
    roomy = MemoryBudget(anonymous_resident() + 50_000_000)
    roomy.add_shrinker("ballast", give, loss=0.0)
    roomy.relieve()
    assert asked == []
    tight = MemoryBudget(anonymous_resident() - 16_000_000, baseline=0)
    tight.add_shrinker("ballast", give, loss=0.0)
    assert tight.relieve() <= tight.limit
    assert asked == [pytest.approx(17_000_000, abs=1_500_000)]


def test_a_reservation_under_way_is_not_overtaken() -> None:
    """Bytes that caches give back for one are not taken by another that comes meanwhile."""
    budget = MemoryBudget(100, baseline=0)
    refused: list[BudgetExceeded] = []

    def overtake() -> None:
        try:
            budget.reserve("second", 40)
        except BudgetExceeded as error:
            refused.append(error)

    second = threading.Thread(target=overtake, daemon=True)

    def first(nbytes: int) -> int:
        if second.ident is None:
            second.start()
            second.join(0.1)
        return 0

    budget.add_shrinker("first", first, loss=0.0)
    cache = Cache(budget, "cache", 50, loss=1.0)
    budget.reserve("first", 80)
    second.join(PATIENCE_S)
    assert refused
    assert budget.holders() == {"first": 80}
    assert cache.lease.nbytes == 0


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can, so that missing locks show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_threads_hammering_the_ledger() -> None:
    budget = MemoryBudget(1000, baseline=0)
    caches = [Cache(budget, f"cache {i}", 100, loss=i) for i in range(3)]
    wrong: list[str] = []
    refused = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        mine: list[Lease] = []
        for _ in range(400):
            try:
                if mine and chance.random() < 0.5:
                    lease = mine[chance.randrange(len(mine))]
                    lease.resize(chance.randrange(300))
                elif mine and chance.random() < 0.4:
                    mine.pop().release()
                elif chance.random() < 0.2:
                    caches[seed % 3].lease.resize(chance.randrange(100))
                else:
                    mine.append(budget.reserve(f"thread {seed}", chance.randrange(300)))
            except BudgetExceeded:
                refused.append(seed)
            if not 0 <= budget.used <= budget.limit:
                wrong.append(f"used {budget.used}")
        for lease in mine:
            lease.release()

    at_once(work, 6)
    assert not wrong
    assert refused, "the test must have met refusals"
    assert budget.used == sum(cache.lease.nbytes for cache in caches) == sum(budget.holders().values())
