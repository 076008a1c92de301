"""Models that share a budget: one that does not fit waits for the others' requests, then takes their room."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import apsw
import pytest
from naive.waiting import PATIENCE_S

from edge.apps.pool import Held, ModelPool
from edge.apps.store.database import set_setting
from edge.apps.store.rebuilding import EMBEDDER, EmbedderIdentity
from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, ModelError


class Leased:
    """A model that is only a lease."""

    def __init__(self, budget: MemoryBudget, name: str, nbytes: int) -> None:
        self.lease: Lease = budget.reserve(name, nbytes)

    def close(self) -> None:
        self.lease.release()


class Pair:
    """Two models of 60 bytes in a budget of 100."""

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self.budget = MemoryBudget(100, baseline=0)
        self.pool = ModelPool(self.budget)
        self.opened = 0
        self.slots = {name: self.held(name) for name in ("one", "other")}

    def held(self, name: str, chosen: Leased | None = None) -> Held[Leased]:
        def opening() -> Leased:
            model = chosen or Leased(self.budget, name, 60)
            self.opened += 1
            return model

        return self.pool.held("model", name, opening, chosen=chosen, shared=self.shared)

    def work(self, name: str, seconds: float = 0.0) -> str:
        def request(model: Leased) -> str:
            time.sleep(seconds)
            assert model.lease.nbytes == 60, "closed under a request"
            assert self.budget.used <= 100
            return name

        return self.slots[name].run(request)


def test_one_makes_room_for_the_other() -> None:
    pair = Pair()
    assert [pair.work(name) for name in ("one", "one", "other", "one")] == ["one", "one", "other", "one"]
    assert pair.opened == 3
    assert pair.budget.used == 60


@pytest.mark.parametrize("shared", [False, True])
def test_threads_wait_for_the_model_that_is_busy(shared: bool) -> None:
    pair = Pair(shared)
    names = ["one", "other"] * 20
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda name: pair.work(name, 0.002), names)) == names


def test_a_request_inside_a_request_makes_room_with_it() -> None:
    pair = Pair()
    barrier = threading.Barrier(2, timeout=PATIENCE_S)

    def nested(name: str) -> str:
        barrier.wait()
        return pair.slots[name].run(lambda _: pair.work(name, 0.01))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(nested, ("one", "other"))) == ["one", "other"]


def test_what_does_not_fit_alone_is_refused_and_leaves_no_lock() -> None:
    pair = Pair()
    pair.work("one")

    with pytest.raises(BudgetExceeded, match="large"):
        pair.pool.held("model", "large", lambda: Leased(pair.budget, "large", 200), shared=pair.shared).run(id)
    assert pair.budget.used == 0
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(pair.work, "one").result(timeout=PATIENCE_S) == "one"


def test_models_are_closed_for_work_that_needs_their_memory() -> None:
    pair = Pair()
    pair.work("one")
    pair.pool.make_way(lambda: pair.budget.reserve("index", 40).release())
    assert pair.budget.used == 60
    pair.pool.make_way(lambda: pair.budget.reserve("index", 90).release())
    assert pair.budget.used == 0
    with pytest.raises(BudgetExceeded, match="index"):
        pair.pool.make_way(lambda: pair.budget.reserve("index", 101))
    assert pair.work("one") == "one"


def test_requests_wait_for_work_that_has_the_models_memory() -> None:
    pair = Pair()
    pair.work("one")
    begun, order = threading.Event(), []

    def index() -> None:
        with pair.budget.reserve("index", 90):
            begun.set()
            time.sleep(0.1)
            order.append("index")

    with ThreadPoolExecutor(2) as threads:
        maintained = threads.submit(pair.pool.make_way, index)
        assert begun.wait(PATIENCE_S)
        asked = threads.submit(lambda: order.append(pair.work("one")))
        maintained.result(timeout=PATIENCE_S)
        asked.result(timeout=PATIENCE_S)
    assert order == ["index", "one"]


def test_a_model_that_was_handed_over_stays_open() -> None:
    pair = Pair()
    mine = Leased(pair.budget, "mine", 60)
    assert pair.held("mine", mine).run(lambda model: model) is mine
    with pytest.raises(BudgetExceeded):
        pair.work("other")
    assert mine.lease.nbytes == 60


def test_an_error_while_opening_leaves_nothing_leased_and_the_next_request_opens() -> None:
    pair = Pair(shared=True)
    failures = [ModelError("broken")]

    def opening() -> Leased:
        model = Leased(pair.budget, "flaky", 60)
        if failures:
            model.close()
            raise failures.pop()
        return model

    flaky = pair.pool.held("model", "flaky", opening)
    with pytest.raises(ModelError, match="broken"):
        flaky.run(id)
    assert (pair.budget.used, flaky.users, flaky.is_open) == (0, 0, False)
    assert flaky.run(lambda model: model.lease.nbytes) == 60


def test_pressure_closes_an_idle_model_but_none_in_use() -> None:
    pair = Pair(shared=True)
    one = pair.slots["one"]

    def press(model: Leased) -> int:
        with pytest.raises(BudgetExceeded):
            pair.budget.reserve("index", 60)
        return model.lease.nbytes

    assert one.run(press) == 60
    pair.budget.reserve("index", 60).release()
    assert not one.is_open


def test_an_identity_survives_its_text() -> None:
    identity = EmbedderIdentity("name", "", "abc", 384)
    with closing(apsw.Connection(":memory:")) as db:
        db.execute("CREATE TABLE settings(name PRIMARY KEY, value)")
        assert EmbedderIdentity.stored(db) is None
        set_setting(db, EMBEDDER, identity.to_json())
        assert EmbedderIdentity.stored(db) == identity


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_that_is_closed_inside_its_own_request_does_not_wait_for_itself(shared: bool) -> None:
    pair = Pair(shared)
    ended = threading.Event()

    def request(model: Leased) -> None:
        pair.slots["one"].close()
        assert model.lease.nbytes == 0
        ended.set()

    threading.Thread(target=lambda: pair.slots["one"].run(request), daemon=True).start()
    assert ended.wait(PATIENCE_S)
    assert pair.work("one") == "one"
