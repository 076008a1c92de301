"""A cache that gives way in steps."""

from __future__ import annotations

from edge.budget import MemoryBudget


class Cache:
    """Holds bytes and gives them back in steps of `step`, as a window gives whole blocks."""

    def __init__(self, budget: MemoryBudget, name: str, nbytes: int, loss: float, step: int = 1) -> None:
        self.step = step
        self.loss = loss
        self.asked: list[int] = []
        self.lease = budget.reserve(name, nbytes)
        self.remove = budget.add_shrinker(name, self.shrink, loss=loss)

    def shrink(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        given = min(self.lease.nbytes, -(-nbytes // self.step) * self.step)
        self.lease.resize(self.lease.nbytes - given)
        return given
