"""Room in a budget: what gives way, who waits, and plans that add up lasting memory and the largest passing stage."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from naive.cache import Cache
from naive.waiting import PATIENCE_S, at_once

from edge import budget as module
from edge.budget import SPREAD, MemoryBudget
from edge.budget import OperationPlan as Plan
from edge.budget import OperationStage as Stage
from edge.errors import BudgetExceeded

# malloc maps an allocation of more than 32 MiB anew. It may answer a smaller one from memory that an earlier test freed
# and that is still resident: then the process does not grow, and nothing is charged.
FRESH = 40_000_000


def test_room_is_made_by_caches_the_cheapest_first_and_reserved_by_nobody() -> None:
    budget = MemoryBudget(1000, baseline=100)
    dear, cheap = Cache(budget, "dear", 300, loss=2), Cache(budget, "cheap", 400, loss=1, step=50)
    assert budget.make_room(150) == 200
    assert (cheap.asked, dear.asked) == ([], [])
    assert budget.make_room(320) == 350
    assert (cheap.lease.nbytes, dear.lease.nbytes) == (250, 300)
    assert budget.make_room(2000) == 900
    assert budget.holders() == {"process": 100}
    budget, seconds = MemoryBudget(1000, baseline=0), {"lists": 1e-9, "weights": 2e-9}
    caches = {name: Cache(budget, name, 400, loss=lambda name=name: seconds[name]) for name in seconds}
    budget.reserve("first", 300).release()
    assert (caches["lists"].lease.nbytes, caches["weights"].lease.nbytes) == (300, 400)
    seconds["lists"] = 3e-9  # the order follows what is measured at the moment
    budget.reserve("second", 500).release()
    assert (caches["lists"].lease.nbytes, caches["weights"].lease.nbytes) == (300, 200)


@pytest.fixture
def settled() -> None:
    """Garbage of earlier tests, collected meanwhile, would hide the memory that a library takes."""
    gc.collect()


@pytest.mark.usefixtures("settled")
def test_libraries_are_held_for_good_and_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_one.py").write_text(f"held = b'x' * {FRESH}")
    (tmp_path / "heavy_two.py").write_text(f"held = b'x' * {FRESH}")
    monkeypatch.syspath_prepend(tmp_path)
    budget = MemoryBudget(10**12, baseline=0)
    budget.hold_libraries(["heavy_one", "there_is_no_such_module"])
    assert budget.holders()["libraries"] == pytest.approx(FRESH, abs=1_500_000)
    budget.hold_libraries(["heavy_two"])
    budget.hold_libraries(["heavy_one", "heavy_two"])
    assert budget.holders()["libraries"] == pytest.approx(2 * FRESH, abs=1_500_000)
    held = budget.used
    monkeypatch.setattr("edge.resident.anonymous_resident", iter(range(0, 10**6, 4096)).__next__)
    budget.hold_libraries(["json"])
    assert budget.used == held, "one that is loaded already takes nothing"


@pytest.mark.usefixtures("settled")
def test_a_library_that_does_not_fit_is_refused_until_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_three.py").write_text(f"held = b'x' * {FRESH}")
    monkeypatch.syspath_prepend(tmp_path)
    budget = MemoryBudget(50_000_000, baseline=0)
    other = budget.reserve("other", 45_000_000)
    with pytest.raises(BudgetExceeded) as caught:
        budget.hold_libraries(["heavy_three"])
    assert "heavy_three" not in sys.modules, "it is refused before it is imported"
    other.resize(budget.limit - caught.value.asked)
    with pytest.raises(BudgetExceeded, match="libraries needs"):
        budget.hold_libraries(["heavy_three"])  # it takes more than anybody knew
    other.release()
    budget.hold_libraries(["heavy_three"])  # it is there already, and does not make the process grow any more
    assert budget.holders()["libraries"] == pytest.approx(FRESH, abs=1_500_000)


@pytest.mark.usefixtures("settled")
def test_one_thread_loads_at_a_time_and_what_another_takes_is_not_charged_to_it() -> None:
    budget = MemoryBudget(10**12, baseline=0)
    loading = 0
    seen = []

    def load(number: int) -> None:
        nonlocal loading
        with budget.charge("tables", 50_000_000) as lease:
            loading += 1
            seen.append((loading, lease.nbytes))
            kept.append(np.ones(FRESH, np.uint8))
            loading -= 1

    kept: list[object] = []
    at_once(load, 4)
    assert seen == [(1, 50_000_000)] * 4, "alone, and under a lease that was taken before"
    assert budget.holders()["tables"] == pytest.approx(4 * FRESH, abs=3_000_000)

    def disturb() -> None:
        budget.reserve("other", 1)

    with budget.charge("more", 50_000_000) as lease:
        other = threading.Thread(target=disturb)
        other.start()
        other.join()
    assert lease.nbytes == 50_000_000, "who else has grown meanwhile nobody knows"


def test_what_nobody_leased_is_held_while_it_is_there_and_given_up_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = 0
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: resident)
    budget = MemoryBudget(100 << 20, baseline=10 << 20)
    cache = Cache(budget, "cache", 88 << 20, loss=0)
    resident = 103 << 20  # 5 MiB more than leases say
    budget.relieve()
    assert budget.holders()["unleased"] == 6 << 20
    assert cache.lease.nbytes == 84 << 20
    resident = 99 << 20
    budget.relieve()
    assert (budget.holders()["unleased"], cache.lease.nbytes) == (6 << 20, 84 << 20), "the limit is kept: no churn"
    resident = 95 << 20
    budget.relieve()
    assert budget.holders()["unleased"] == 2 << 20
    resident = 120 << 20
    budget.relieve()
    assert budget.holders() == {"cache": 63 << 20, "unleased": 27 << 20, "process": 10 << 20}
    budget.reserve("model", 80 << 20)
    assert budget.holders() == {"model": 80 << 20, "process": 10 << 20}
    part = MemoryBudget(1000, part=True)  # not compared with the process
    cache = Cache(part, "cache", 900, loss=0)
    part.relieve()
    assert (cache.asked, part.holders()) == ([], {"cache": 900})


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


MB = 1 << 20


def test_stages_leave_libraries_and_what_they_keep_and_give_back_what_is_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "import_nbytes", lambda names: 10 * MB * len(set(names)))
    stages = [Stage("open", kept=2 * MB), Stage("embed", own=30 * MB), Stage("judge", own=20 * MB, kept=5 * MB)]
    assert Plan("searching", stages).nbytes == 32 * MB
    assert Plan("searching", stages[::-1]).nbytes == 35 * MB, "what is kept is there in every later stage"
    assert Plan("nothing", []).nbytes == 0
    stages = [Stage("a", own=50 * MB, libraries=("x",)), Stage("b", own=45 * MB, libraries=("x", "y"))]
    assert Plan("both", stages).nbytes == 65 * MB


def test_the_limit_that_a_refusal_names_is_accepted_and_a_byte_less_than_needed_is_not() -> None:
    plan = Plan("searching", [Stage("open", kept=2 * MB), Stage("reranking", own=30 * MB)])
    budget = MemoryBudget(32 * MB + 10 * MB - 1, baseline=10 * MB)
    with pytest.raises(
        BudgetExceeded, match=r"searching cannot work within 44\.0 MB: reranking needs 33\.6 MB"
    ) as caught:
        plan.check(budget)
    assert caught.value.needed == 42 * MB + SPREAD
    plan.check(MemoryBudget(caught.value.needed, baseline=10 * MB))
    budget = MemoryBudget(50 * MB, baseline=0)
    cache = Cache(budget, "cache", 40 * MB, loss=1)
    Plan("searching", [Stage("reranking", own=30 * MB)]).check(budget)
    assert cache.lease.nbytes <= 20 * MB, "caches give way to a plan"
