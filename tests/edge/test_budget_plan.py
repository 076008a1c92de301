"""A plan adds up the lasting memory, and takes the largest of the stages that come and go."""

from __future__ import annotations

import pytest
from naive.cache import Cache

from edge import budget as module
from edge.budget import SPREAD, MemoryBudget
from edge.budget import OperationPlan as Plan
from edge.budget import OperationStage as Stage
from edge.errors import BudgetExceeded

MB = 1 << 20


def test_stages_leave_what_they_keep_and_give_back_what_is_theirs() -> None:
    stages = [Stage("open", kept=2 * MB), Stage("embed", own=30 * MB), Stage("judge", own=20 * MB, kept=5 * MB)]
    assert Plan("searching", stages).nbytes == 32 * MB
    assert Plan("searching", stages[::-1]).nbytes == 35 * MB, "what is kept is there in every later stage"
    assert Plan("nothing", []).nbytes == 0


def test_libraries_stay_once_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "import_nbytes", lambda names: 10 * MB * len(set(names)))
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


def test_caches_give_way_to_a_plan() -> None:
    budget = MemoryBudget(50 * MB, baseline=0)
    cache = Cache(budget, "cache", 40 * MB, loss=1)
    Plan("searching", [Stage("reranking", own=30 * MB)]).check(budget)
    assert cache.lease.nbytes <= 20 * MB
