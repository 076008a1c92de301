"""Page-locked memory for hidden states under the ledger of the host. No device is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.runtimes.cuda.states import KeptPages

SIZE = 64 << 10


def pages(budget: MemoryBudget) -> KeptPages:
    def pinned(nbytes: int) -> Any:
        return SimpleNamespace(array=np.empty(nbytes, np.uint8), close=lambda: None)

    return KeptPages(SimpleNamespace(host=budget, pinned=pinned))


def test_taking_waits_for_blocks_on_their_way_to_other_caches() -> None:
    budget = MemoryBudget(2 * SIZE, baseline=0)
    cache = budget.reserve("lists", 2 * SIZE)
    arrived = False

    def settle() -> bool:
        nonlocal arrived
        was, arrived = arrived, True
        return not was

    budget.add_shrinker("lists", lambda nbytes: cache.release() if arrived else None, loss=0.0, settle=settle)
    kept = pages(budget)
    assert kept.take(SIZE).array.nbytes == SIZE
    assert budget.holders() == {"hidden states": SIZE}
    kept.give_back()
    kept.close()
    assert budget.used == 0
    with pytest.raises(BudgetExceeded):
        pages(budget).take(3 * SIZE)
    assert budget.used == 0, "what is refused holds nothing"
