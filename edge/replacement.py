"""Which cached states are worth least: PGDSF (RAGCache, section 5.1), and LRU and LFU to compare it with.

One policy object serves one tier and carries that tier's clock. It ranks entries by a number; who may be evicted at all
(leaves, not in use) is the tier's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Usage:
    """What is known about one entry's past.

    Attributes:
        frequency: requests that asked for it.
        computed: those of them that found it nowhere and had to compute it.
        total_cost: sum over those of the request's seconds per uncached token.
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
    """Ranks the entries of one tier; the lowest priority leaves first."""

    def used(self, usage: Usage) -> float:
        """The priority of an entry that was just put in the tier, or asked for while there."""
        ...

    def evicted(self, priority: float) -> None:
        """An entry of this priority had to leave for lack of space."""
        ...

    def resumed(self, priorities: Collection[float]) -> None:
        """The tier was filled from an earlier run with entries of these priorities: go on from there."""
        ...


class PGDSF:
    """Prefix-aware greedy dual-size frequency: clock + frequency * cost per uncached token.

    The cost stands for cost / size of the classic policy: computing a document takes the longer the more precedes it,
    and that time is spread over all tokens the request had to compute. The clock lets what was popular once grow old.
    """

    def __init__(self) -> None:
        self.clock = 0.0

    def used(self, usage: Usage) -> float:
        return self.clock + usage.frequency * usage.cost

    def evicted(self, priority: float) -> None:
        self.clock = max(self.clock, priority)

    def resumed(self, priorities: Collection[float]) -> None:
        # Nothing in a tier ranks below its clock, and the next eviction would set the clock to the lowest anyway.
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
