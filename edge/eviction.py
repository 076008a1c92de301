"""Which cached block goes first: policies of a `Residency`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol


class Policy(Protocol):
    """Which cached block goes first. Called with the residency locked."""

    def insert(self, key: Hashable) -> None: ...

    def touch(self, key: Hashable) -> None:
        """The block is used in this round."""

    def remove(self, key: Hashable) -> None: ...

    def begin_round(self) -> None: ...

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """The coldest block that `evictable` allows; it stays until `remove`."""


class LRU:
    """Least recently used first."""

    def __init__(self) -> None:
        self._order: OrderedDict[Hashable, None] = OrderedDict()

    def insert(self, key: Hashable) -> None:
        self._order[key] = None

    def touch(self, key: Hashable) -> None:
        self._order.move_to_end(key)

    def remove(self, key: Hashable) -> None:
        del self._order[key]

    def begin_round(self) -> None:
        pass

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        return next((key for key in self._order if evictable(key)), None)


class DecayedHotness:
    """Lowest hotness first: h <- h / decay + (used ? gain : 0) per round (TeleRAG, appendix C).

    All values decay alike, so their order changes only when a block is used: h * decay ** round, as a logarithm, is
    kept in a heap, and a round costs nothing.
    """

    def __init__(self, *, decay: float = 1.02, gain: float = 1.0, initial: float = 1.0) -> None:
        """
        Args:
            decay: above 1; rounds after which an unused block has cooled to a half: log(2) / log(decay).
            gain: for being used in a round, however often.
            initial: of a block that has just been fetched.
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

    def hotness(self, key: Hashable) -> float:
        """Present value."""
        return math.exp(self._hot[key][0] - self._round * self._step)

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

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        passed: list[tuple[float, int, Hashable]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            current = self._hot.get(entry[2])
            if current is not None and current[1] == entry[1]:  # else it has been used or removed since
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
