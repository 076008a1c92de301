"""A least-recently-used cache of rows as an ordered dictionary: from the time of a request to the rows last used then.

Rows of one request are equally old, so which of them goes first is free; all else is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass


@dataclass
class _Group:
    rows: set[int]
    resident: int


class Lru:
    """Follows a cache by the rows it had to read, and says which reads least-recently-used eviction cannot explain."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._clock = 0

    def request(self, rows: Collection[int], read: Collection[int]) -> list[str]:
        """One request for the distinct `rows`, of which the cache read `read`; returns the faults."""
        wrong = []
        for row in sorted(rows):
            group = next((g for g in self._groups.values() if row in g.rows), None)
            if group is None:
                if row not in read:
                    wrong.append(f"row {row} was never read before, and not now")
                continue
            if row in read and group.resident == len(group.rows):
                wrong.append(f"row {row} was read again, but is too young to have been evicted")
            if row not in read and group.resident == 0:
                wrong.append(f"row {row} was not read, but is too old to be still there")
            group.rows.discard(row)
            group.resident -= row not in read
        over = sum(g.resident for g in self._groups.values()) + len(rows) - self.capacity
        for group in self._groups.values():
            gone = max(0, min(over, group.resident))
            group.resident -= gone
            over -= gone
        self._clock += 1
        self._groups[self._clock] = _Group(set(rows), len(rows))
        return wrong
