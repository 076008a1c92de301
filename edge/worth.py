"""`Worth`: how likely the next search needs a block, learned from the searches before.

A prediction that is often wrong must not push out what is often used again. Both are frequencies: how often a block at
this place of a prediction was needed, and how often one that is in memory for so many rounds since its last use. What
is predicted is needed by the next search or not at all; what is in memory may be needed by any search until its turn to
be evicted has come.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Mapping

_FORGET = 0.99
"""What earlier searches count after each further one."""

_RIGHT = (2.0, 2.0)
"""Blocks needed and seen, as assumed at first for each place of a prediction: that it is right."""

_SELDOM = (0.4, 8.0)
"""And for each age: what is in memory is seldom needed again."""

_AGES = 16
"""Rounds since the last use that are told apart."""

NEVER = -1
"""The age of a block that was fetched on a prediction and not used since."""


class Worth:
    """Frequencies of one residency. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, list[float]] = {}  # needed, seen
        self._ages: dict[int, list[float]] = {}

    def of_place(self, place: int) -> float:
        """Probability that an absent block is needed whose group is number `place` in the prediction, from 0 on."""
        with self._lock:
            needed, seen = self._places.get(_class(place), _RIGHT)
        return needed / seen

    def of_age(self, age: int) -> float:
        """Probability that a block in memory is needed whose last use was `age` rounds ago, or `NEVER`."""
        with self._lock:
            needed, seen = self._ages.get(min(age, _AGES), _SELDOM)
        return needed / seen

    def before(self, age: int, oldest: int) -> float:
        """Probability that a block in memory whose last use was `age` rounds ago is needed before it would be given up
        anyway, at the age `oldest`. A block that was fetched on a prediction and not used since counts for the next
        search alone."""
        if age == NEVER:
            return self.of_age(age)
        spared = 1.0
        for round_ in range(age, max(age, oldest) + 1):
            spared *= 1 - self.of_age(round_)
        return 1 - spared

    def observe(
        self, places: Mapping[Hashable, int], ages: Mapping[Hashable, int], needed: Collection[Hashable]
    ) -> None:
        """A search is over.

        Args:
            places: absent blocks that the prediction went through.
            ages: blocks that were in memory when it began.
            needed: blocks the search asked for.
        """
        with self._lock:
            for counts in (*self._places.values(), *self._ages.values()):
                counts[0] *= _FORGET
                counts[1] *= _FORGET
            for key, place in places.items():
                _count(self._places, _class(place), key in needed, _RIGHT)
            for key, age in ages.items():
                _count(self._ages, min(age, _AGES), key in needed, _SELDOM)


def _class(place: int) -> int:
    """Places that count together: fewer at the front, where they differ more."""
    return (place + 1).bit_length() * 2 + ((place + 1) >> max(0, (place + 1).bit_length() - 2) & 1)


def _count(table: dict[int, list[float]], row: int, needed: bool, assumed: tuple[float, float]) -> None:
    counts = table.setdefault(row, list(assumed))
    counts[0] += needed
    counts[1] += 1
