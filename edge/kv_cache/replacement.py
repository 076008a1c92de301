"""Ranking of cached states by value: PGDSF (RAGCache, section 5.1), and LRU and LFU for comparison.

One policy object serves one tier and holds that tier's clock. It ranks entries by a number. The tier itself decides
which entries may be evicted at all (leaves that are not in use).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Usage:
    """The history of one entry.

    Attributes:
        frequency: number of requests for it.
        computed: number of these requests that had to compute it, because no tier had it.
        total_cost: sum over the latter of the request's seconds per uncached token.
    """

    frequency: int = 0
    computed: int = 0
    total_cost: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds per uncached token, averaged over the requests that computed it (formula 3); 0 before the first."""
        return self.total_cost / self.computed if self.computed else 0.0

    def requested(self) -> None:
        """Counts a request."""
        self.frequency += 1

    def missed(self, seconds_per_token: float) -> None:
        """Counts a request that had to compute the entry."""
        self.computed += 1
        self.total_cost += seconds_per_token


class Replacement(Protocol):
    """Ranks the entries of one tier. The entry with the lowest priority is evicted first."""

    def used(self, usage: Usage) -> float:
        """The priority of an entry that was just added to the tier, or requested from it."""
        ...

    def evicted(self, priority: float) -> None:
        """Notes that an entry of this priority was evicted for lack of space."""
        ...

    def resumed(self, priorities: Collection[float]) -> None:
        """Continues from an earlier run: the tier holds entries of these priorities."""
        ...


class PGDSF:
    """Prefix-aware greedy dual-size frequency: clock + frequency * cost per uncached token.

    The cost replaces cost / size of the classic policy: the more tokens precede a document, the longer it takes to
    compute, and this time is spread over all tokens that the request had to compute. The clock makes entries lose rank
    that were popular only in the past.
    """

    def __init__(self) -> None:
        self.clock = 0.0

    def used(self, usage: Usage) -> float:
        return self.clock + usage.frequency * usage.cost

    def evicted(self, priority: float) -> None:
        self.clock = max(self.clock, priority)

    def resumed(self, priorities: Collection[float]) -> None:
        # No entry of a tier ranks below its clock, and the next eviction would set the clock to the lowest anyway.
        self.clock = max(self.clock, min(priorities, default=0.0))


class LRU:
    """Least recently used."""

    def __init__(self) -> None:
        self._tick = 0.0

    def used(self, usage: Usage) -> float:
        self._tick += 1
        return self._tick

    def evicted(self, priority: float) -> None:
        pass

    def resumed(self, priorities: Collection[float]) -> None:
        self._tick = max(self._tick, max(priorities, default=0.0))


class LFU:
    """Least frequently used."""

    def used(self, usage: Usage) -> float:
        return float(usage.frequency)

    def evicted(self, priority: float) -> None:
        pass

    def resumed(self, priorities: Collection[float]) -> None:
        pass


POLICIES: Mapping[str, Callable[[], Replacement]] = {"pgdsf": PGDSF, "lru": LRU, "lfu": LFU}
"""Policies by name."""
