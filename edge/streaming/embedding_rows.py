"""An LRU cache of table rows (GRATING, section 4.4): the embedding table stays on disk, and its used rows in memory.
Misses are read in one pass over ascending file positions."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.blocks import RowTable, distinct
from edge.budget import MemoryBudget
from edge.errors import CorruptBlock
from edge.link import Lane
from edge.trace import Trace

_PRIORITY = -1.0
"""Rows go before weights and lists, because computing cannot start without the first layer's input."""

_PIECE = 1 << 20
"""Bytes of rows that are read at a time."""


class RowSource(Protocol):
    def read_rows(self, table: RowTable, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> int: ...


class RowCache:
    """Least-recently-used rows of one table. Not thread-safe: it belongs to one engine."""

    def __init__(
        self,
        source: RowSource,
        table: RowTable,
        capacity: int,
        budget: MemoryBudget,
        lane: Lane,
        *,
        checksums: npt.NDArray[np.uint32] | None = None,
        trace: Trace | None = None,
        remedy: str = "",
    ) -> None:
        """Reserves the memory of `capacity` rows. `checksums`: CRC-32 of each row [rows], verified on reading; `remedy`
        is added to the message of a damaged row."""
        self.table = table
        self.capacity = max(1, min(capacity, table.rows))
        self._source = source
        self._checksums = checksums
        self._remedy = f"; {remedy}" if remedy else ""
        self._trace = trace or Trace()
        self._lease = budget.reserve("embedding rows", self.memory_needed(table, self.capacity))
        self._lane = lane
        self._slot_of = np.full(table.rows, -1, np.int32)
        self._row_in = np.full(self.capacity, -1, np.int64)
        self._last_use = np.zeros(self.capacity, np.int64)
        self._rows = np.empty((self.capacity, table.row_nbytes), np.uint8)
        self._clock = 0

    @staticmethod
    def memory_needed(table: RowTable, capacity: int) -> int:
        """Bytes that a cache of `capacity` rows holds, including its index."""
        return table.rows * 4 + capacity * (table.row_nbytes + 16)

    def gather(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The bytes of rows `ids` [n], repeats allowed: uint8 [n, row_nbytes]. IndexError outside the table."""
        unique = distinct(ids)
        if len(unique) and not 0 <= int(unique[0]) <= int(unique[-1]) < self.table.rows:
            outside = int(unique[0]) if unique[0] < 0 else int(unique[-1])
            raise IndexError(f"row {outside} is not among the table's {self.table.rows:,}")
        if len(unique) > self.capacity:
            # More different rows than the cache holds are read without caching, since they would evict each other.
            return self.read(unique)[np.searchsorted(unique, ids)]
        self.prefetch(unique)
        return self._rows[self._slot_of[ids]]

    def prefetch(self, unique: npt.NDArray[np.int64]) -> None:
        """Loads rows `unique` [n], ascending, into the cache; rows beyond the capacity are left out."""
        unique = unique[: self.capacity]
        self._clock += 1
        held = self._slot_of[unique]
        present = held >= 0
        self._last_use[held[present]] = self._clock
        missing = unique[~present]
        self._trace.count("rows.hits", len(unique) - len(missing))
        if len(missing) == 0:
            return
        # Slots in use by this request have the newest clock value, and are therefore never among the victims.
        victims = np.argpartition(self._last_use, len(missing) - 1)[: len(missing)]
        step = max(1, _PIECE // self.table.row_nbytes)  # bounds the memory of rows that are not in a slot yet
        for start in range(0, len(missing), step):
            rows, slots = missing[start : start + step], victims[start : start + step]
            fresh = self.read(rows)
            evicted = self._row_in[slots]
            self._slot_of[evicted[evicted >= 0]] = -1
            self._rows[slots] = fresh
            self._row_in[slots] = rows
            self._slot_of[rows] = slots
            self._last_use[slots] = self._clock

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The bytes of rows [n], ascending, unique, past the cache: uint8 [n, row_nbytes]."""
        self._trace.count("rows.misses", len(rows))
        out = np.empty((len(rows), self.table.row_nbytes), np.uint8)
        read = partial(self._source.read_rows, self.table, rows, out)
        self._lane.submit("rows", read, out.nbytes, priority=_PRIORITY).wait()
        if self._checksums is not None:
            size, flat = self.table.row_nbytes, out.reshape(-1).data
            found = (zlib.crc32(flat[low : low + size]) for low in range(0, len(flat), size))
            wrong = np.flatnonzero(np.fromiter(found, np.uint32, len(rows)) != self._checksums[rows])
            if len(wrong):
                row = int(rows[wrong[0]])
                raise CorruptBlock(f"embedding row {row} is corrupt: its checksum does not match{self._remedy}")
        return out

    def close(self) -> None:
        self._rows = np.empty((0, self.table.row_nbytes), np.uint8)
        self._slot_of = np.empty(0, np.int32)
        self._lease.release()
