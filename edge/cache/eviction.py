"""Policies of a `Residency`: the choice of the cached block to evict first."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable
from typing import Protocol


class Policy(Protocol):
    """Chooses the cached block to evict first. Called with the residency locked."""

    def insert(self, key: Hashable) -> None: ...

    def touch(self, key: Hashable) -> None:
        """Notes that the block is used in this round."""

    def remove(self, key: Hashable) -> None: ...

    def begin_round(self) -> None: ...

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """The coldest block that `evictable` allows; it stays until `remove`."""

    def copy(self) -> Policy:
        """A policy of its own that knows the same blocks."""


class DecayedHotness:
    """Lowest hotness first: h <- h / decay + (used ? gain : 0) per round (TeleRAG, appendix C).

    All values decay by the same factor, so that their order changes only when a block is used. The heap holds the
    logarithm of h * decay ** round, and beginning a round costs nothing.
    """

    def __init__(self, *, decay: float = 1.02, gain: float = 1.0, initial: float = 1.0) -> None:
        """
        Args:
            decay: factor above 1 per round. An unused block cools to a half in log(2) / log(decay) rounds.
            gain: added once in each round in which the block is used.
            initial: hotness of a block that has just been fetched.
        """
        if decay <= 1 or gain <= 0 or initial <= 0:
            raise ValueError(f"decay must be above 1, gain and initial above 0; not {decay}, {gain}, {initial}")
        self._step = math.log(decay)
        self._gain = gain
        self._initial = initial
        self._round = 0
        self._hot: dict[Hashable, tuple[float, int, int]] = {}  # level, order of entry, round of the last use
        self._heap: list[tuple[float, int, Hashable]] = []
        self._order = itertools.count()

    def insert(self, key: Hashable) -> None:
        self._set(key, math.log(self._initial) + self._round * self._step)

    def touch(self, key: Hashable) -> None:
        level, _, last = self._hot[key]
        if last < self._round:
            now = self._round * self._step
            self._set(key, now + math.log(math.exp(level - now) + self._gain))

    def remove(self, key: Hashable) -> None:
        del self._hot[key]

    def begin_round(self) -> None:
        self._round += 1

    def copy(self) -> DecayedHotness:
        made = DecayedHotness()
        made._step, made._gain, made._initial = self._step, self._gain, self._initial
        made._round, made._hot, made._heap = self._round, dict(self._hot), list(self._heap)
        made._order = itertools.count(next(self._order))
        return made

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        passed: list[tuple[float, int, Hashable]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            current = self._hot.get(entry[2])
            if current is not None and current[1] == entry[1]:  # otherwise it was used or removed since
                passed.append(entry)
                found = entry[2] if evictable(entry[2]) else None
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _set(self, key: Hashable, level: float) -> None:
        order = next(self._order)
        self._hot[key] = (level, order, self._round)
        heapq.heappush(self._heap, (level, order, key))
        if len(self._heap) > 64 + 4 * len(self._hot):
            self._heap = [(level, order, key) for key, (level, order, _) in self._hot.items()]
            heapq.heapify(self._heap)
