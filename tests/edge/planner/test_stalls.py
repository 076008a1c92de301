"""Waiting for a batch of retrievals to fill."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from edge.errors import RangeError
from edge.planner.schedule import stall_factor


def by_steps(batch: int, retrieval_batch: int, retrievals: int, tokens: int, steps: int) -> float:
    """The same, one step after the other: every sequence that does not wait writes a token."""
    random = np.random.default_rng(1)

    def stops() -> set[int]:
        return set((random.choice(tokens - 1, retrievals, replace=False) + 1).tolist())

    written, stop = [0] * batch, [stops() for _ in range(batch)]
    begun, first = [0] * batch, [True] * batch
    waiting: list[int] = []
    lengths = []
    for step in range(1, steps):
        for place in range(batch):
            if place in waiting:
                continue
            written[place] += 1
            if written[place] in stop[place]:
                waiting.append(place)
            elif written[place] == tokens:
                if not first[place]:
                    lengths.append(step - begun[place])
                first[place], begun[place], written[place], stop[place] = False, step, 0, stops()
        if len(waiting) >= retrieval_batch:
            del waiting[:retrieval_batch]
    return float(np.mean(lengths)) / tokens


@pytest.mark.parametrize(("batch", "retrieval_batch"), [(4, 2), (4, 4), (8, 4), (6, 3)])
def test_events_equal_steps(batch: int, retrieval_batch: int) -> None:
    slow = by_steps(batch, retrieval_batch, 3, 64, 60_000)
    fast = stall_factor(batch, retrieval_batch, retrievals=3, tokens=64, sequences=3000)
    assert fast == pytest.approx(slow, rel=0.02)


def test_nothing_waits_alone_or_without_retrievals() -> None:
    assert stall_factor(64, 1) == 1.0
    assert stall_factor(64, 8, retrievals=0) == 1.0


def test_it_falls_with_the_batch_and_rises_with_the_retrieval_batch() -> None:
    factors = [[stall_factor(batch, size, sequences=500) for batch in (8, 32, 128)] for size in (2, 4, 8)]
    assert all(row[0] > row[1] > row[2] > 1 for row in factors)
    assert all(a[0] < b[0] for a, b in pairwise(factors))


def test_batches_that_never_fill_are_refused() -> None:
    with pytest.raises(RangeError, match="never fills"):
        stall_factor(4, 8)
    with pytest.raises(RangeError, match="no room"):
        stall_factor(4, 2, retrievals=9, tokens=8)
