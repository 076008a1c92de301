"""Simple policies of replacement for comparison with PGDSF."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from edge.kv_cache.prefix_tree import PGDSF, Replacement, Usage


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
