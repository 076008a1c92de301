"""Room that is made, libraries that are held for good, and what the process holds beyond its leases."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from naive.cache import Cache

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded


def test_room_is_made_by_caches_the_cheapest_first_and_reserved_by_nobody() -> None:
    budget = MemoryBudget(1000, baseline=100)
    dear, cheap = Cache(budget, "dear", 300, loss=2), Cache(budget, "cheap", 400, loss=1, step=50)
    assert budget.make_room(150) == 200
    assert (cheap.asked, dear.asked) == ([], [])
    assert budget.make_room(320) == 350
    assert (cheap.lease.nbytes, dear.lease.nbytes) == (250, 300)
    assert budget.make_room(2000) == 900
    assert budget.holders() == {"process": 100}


@pytest.fixture
def settled() -> None:
    """What earlier tests left to the garbage collector would hide what a library takes if it went meanwhile."""
    gc.collect()


@pytest.mark.usefixtures("settled")
def test_libraries_are_held_for_good_and_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_one.py").write_text("held = b'x' * 20_000_000")
    (tmp_path / "heavy_two.py").write_text("held = b'x' * 30_000_000")
    monkeypatch.syspath_prepend(tmp_path)
    budget = MemoryBudget(10**12, baseline=0)
    budget.hold_libraries(["heavy_one", "there_is_no_such_module"])
    assert budget.holders()["libraries"] == pytest.approx(20_000_000, abs=1_500_000)
    budget.hold_libraries(["heavy_two"])
    budget.hold_libraries(["heavy_one", "heavy_two"])
    assert budget.holders()["libraries"] == pytest.approx(50_000_000, abs=1_500_000)


@pytest.mark.usefixtures("settled")
def test_a_library_that_does_not_fit_is_refused_until_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_three.py").write_text("held = b'x' * 20_000_000")
    monkeypatch.syspath_prepend(tmp_path)
    budget = MemoryBudget(30_000_000, baseline=0)
    other = budget.reserve("other", 25_000_000)
    with pytest.raises(BudgetExceeded) as caught:
        budget.hold_libraries(["heavy_three"])
    assert caught.value.asked == pytest.approx(20_000_000, abs=1_500_000)
    other.release()
    budget.hold_libraries(["heavy_three"])  # it is there already, and does not make the process grow any more
    assert budget.holders()["libraries"] == caught.value.asked


def test_what_nobody_leased_is_held_while_it_is_there_and_given_up_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_part_s_ledger_is_not_compared_with_the_process() -> None:
    budget = MemoryBudget(1000, part=True)
    assert budget.used == 0
    cache = Cache(budget, "cache", 900, loss=0)
    budget.relieve()
    assert (cache.asked, budget.holders()) == ([], {"cache": 900})
