"""`BankLookup`: look-ups of one row in each of many embedding tables, which are placed over banks (MicroRec).

A joined table has a row for each pair of rows of two tables. One access to it replaces two.

Source: Jiang's thesis, section 8.3.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, Extent, RowTable
from edge.budget import Lease, MemoryBudget
from edge.errors import InputError, RangeError, as_storage_error
from edge.ivf.device import Place
from edge.link import Lane
from edge.planner.bank_placement import BankPlacement, EmbeddingTable
from edge.resident import Closing
from edge.streaming.embedding_rows import RowCache, RowSource
from edge.trace import Trace

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_PIECE_ROWS = 8192
"""Number of rows of a joined table that are made at a time."""


class Bank(Protocol):
    """Memory whose rows are read over one lane."""

    lane: Lane

    def fill(self, tables: Sequence[EmbeddingTable], parts: Mapping[str, Floats]) -> list[tuple[RowSource, RowTable]]:
        """Stores tables made of `parts`, and returns each table's source and place. Called once."""

    def close(self) -> None: ...


class FileBank:
    """Tables in one file, whose rows are read over the lane of its disk."""

    def __init__(self, path: Path, lane: Lane) -> None:
        """`lane` stays open when the bank is closed."""
        self.lane = lane
        self._path = path
        self._file: BlockFile | None = None

    def fill(self, tables: Sequence[EmbeddingTable], parts: Mapping[str, Floats]) -> list[tuple[RowSource, RowTable]]:
        """Writes the tables one after the other.

        Raises:
            StorageError: the file cannot be written.
        """
        extents, places, offset = {}, [], 0
        with as_storage_error(f"{self._path} cannot be written"), open(self._path, "wb") as file:
            for number, table in enumerate(tables):
                checksum = 0
                for piece in joined_rows(table, parts):
                    checksum = zlib.crc32(piece.data, checksum)
                    piece.tofile(file)
                extents[BlockId("table", number)] = Extent(offset, table.nbytes, checksum)
                places.append(RowTable(offset, table.rows, 4 * table.dim))
                offset += table.nbytes
        self._file = file_of_blocks = BlockFile(self._path, extents)
        return [(file_of_blocks, place) for place in places]

    def close(self) -> None:
        """Closes the file. It stays on the disk."""
        if self._file is not None:
            self._file.close()


class DeviceBank:
    """Tables in the memory of a device, whose rows are read over the device's link."""

    def __init__(self, device: Place) -> None:
        """The caller closes the device.

        Raises:
            InputError: the device's buffers are no arrays of this process, so single rows of them cannot be read.
        """
        if not device.in_host_memory:
            raise InputError(f"single rows cannot be read from device {device.name}")
        self.lane = device.link
        self._device = device
        self._leases: list[Lease] = []
        self._buffers: list[Any] = []

    def fill(self, tables: Sequence[EmbeddingTable], parts: Mapping[str, Floats]) -> list[tuple[RowSource, RowTable]]:
        """Copies each table into a buffer of its own.

        Raises:
            BudgetExceeded: a table does not fit the device.
        """
        found: list[tuple[RowSource, RowTable]] = []
        for table in tables:
            self._leases.append(self._device.memory.reserve("embedding tables", table.nbytes))
            buffer = self._device.allocate(table.nbytes)
            self._buffers.append(buffer)
            start = 0
            for piece in joined_rows(table, parts):
                data = piece.view(np.uint8).reshape(-1)
                self._device.write(buffer[start : start + len(data)], data)
                start += len(data)
            rows = buffer[: table.nbytes].reshape(table.rows, 4 * table.dim)
            found.append((_ArrayRows(rows), RowTable(0, table.rows, 4 * table.dim)))
        return found

    def close(self) -> None:
        """Frees the buffers."""
        while self._buffers:
            self._device.free(self._buffers.pop())
        while self._leases:
            self._leases.pop().release()


@dataclass(frozen=True, slots=True)
class _ArrayRows:
    data: npt.NDArray[np.uint8]

    def read_rows(self, table: RowTable, rows: Ids, out: npt.NDArray[np.uint8]) -> int:
        np.take(self.data, rows, axis=0, out=out)
        return out.nbytes


@dataclass(slots=True)
class _Held:
    """A placed table: its rows in memory, or the cache that reads them from a bank."""

    table: EmbeddingTable
    near: Floats | None = None
    cache: RowCache | None = None


class BankLookup(Closing):
    """Tables at their places. Each bank is read by a thread of its own, so that banks work at the same time.

    The result of a look-up does not depend on the placement. One thread may look up at a time. A context manager.

    Counters (in `trace`): `lookup.near_s`, `lookup.bank_s` (seconds of accesses), `lookup.near`, `lookup.bank`
    (accesses), besides those of `RowCache` and of the lanes.
    """

    def __init__(
        self,
        placement: BankPlacement,
        parts: Mapping[str, Floats],
        banks: Sequence[Bank],
        budget: MemoryBudget,
        *,
        cached: int = 1,
        trace: Trace | None = None,
    ) -> None:
        """Copies the tables to their places.

        Args:
            placement: the place of every table. The names in its tables' `parts` are those of `parts`.
            parts: the rows of each table [rows, dim] by name. The columns of a look-up are in this order.
            banks: at least as many banks as the placement uses. They are closed with this object.
            cached: number of rows of each table in a bank that stay in memory.

        Raises:
            BudgetExceeded: the tables do not fit the memory.
            InputError: the placement and the tables do not match, or there are too few banks.
            StorageError: a bank's file cannot be written.
        """
        placed = [table for bank in (placement.near, *placement.banks) for table in bank]
        if sorted(name for table in placed for name in table.parts) != sorted(parts):
            raise InputError("a placement holds each table exactly once")
        used = [bank for bank in placement.banks if bank]
        if len(used) > len(banks):
            raise InputError(f"{len(used)} banks are needed, and there are {len(banks)}")
        self._trace = trace or Trace()
        self._rows = {name: len(rows) for name, rows in parts.items()}
        ends = np.cumsum([rows.shape[1] for rows in parts.values()])
        self._columns = {
            name: slice(int(end) - rows.shape[1], int(end))
            for (name, rows), end in zip(parts.items(), ends, strict=True)
        }
        self.dim = int(ends[-1])
        self._banks = banks
        self._held: list[list[_Held]] = []
        self._lease = budget.reserve("tables in near memory", sum(table.nbytes for table in placement.near))
        self._pool = ThreadPoolExecutor(max(1, len(used)), thread_name_prefix="edge-bank")
        try:
            self._near = [_Held(table, near=_whole(table, parts)) for table in placement.near]
            for bank, tables in zip(banks, used, strict=False):
                own: list[_Held] = []
                self._held.append(own)
                for table, (source, place) in zip(tables, bank.fill(tables, parts), strict=True):
                    cache = RowCache(source, place, cached, budget, bank.lane, trace=self._trace)
                    own.append(_Held(table, cache=cache))
        except BaseException:
            self.close()
            raise

    def vectors(self, ids: Ids) -> Floats:
        """The rows of all tables side by side, [n, dim].

        Args:
            ids: row numbers [n, tables], in the order of the tables given.

        Raises:
            RangeError: a row number is not in its table.
            InputError: there is not one number for each table.
        """
        if ids.ndim != 2 or ids.shape[1] != len(self._rows):
            raise InputError(f"one row number for each of {len(self._rows)} tables is needed, not {ids.shape}")
        for (name, rows), column in zip(self._rows.items(), ids.T, strict=True):
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < rows:
                raise RangeError(f"table {name} has the rows 0 to {rows - 1:,}")
        numbers = dict(zip(self._rows, ids.T, strict=True))
        out = np.empty((len(ids), self.dim), np.float32)
        reading = [self._pool.submit(self._read, held, numbers, out) for held in self._held]
        try:
            self._read(self._near, numbers, out)
        finally:
            for future in reading:
                future.exception()  # no thread writes into `out` any more
        for future in reading:
            future.result()
        return out

    def close(self) -> None:
        """Frees all memory and closes the banks."""
        self._pool.shutdown()
        for held in (each for own in self._held for each in own):
            if held.cache is not None:
                held.cache.close()
        self._near = []
        self._held = []
        for bank in self._banks:
            bank.close()
        self._lease.release()

    def _read(self, held: Sequence[_Held], numbers: Mapping[str, Ids], out: Floats) -> None:
        for each in held:
            started = time.perf_counter()
            parts = each.table.parts
            wanted = _joined(parts, numbers, self._rows)
            if each.cache is not None:
                rows: Floats = each.cache.gather(wanted).view(np.float32)
                kind = "bank"
            else:
                assert each.near is not None
                rows, kind = each.near[wanted], "near"
            start = 0
            for name in parts:
                columns = self._columns[name]
                width = columns.stop - columns.start
                out[:, columns] = rows[:, start : start + width]
                start += width
            self._trace.count(f"lookup.{kind}_s", time.perf_counter() - started)
            self._trace.count(f"lookup.{kind}")


def joined_rows(table: EmbeddingTable, parts: Mapping[str, Floats]) -> Iterator[Floats]:
    """The rows of a table in pieces [n, dim]. A joined table has a row for each combination of its parts' rows.

    Raises:
        InputError: the table's size does not match its parts.
    """
    sizes = [len(parts[name]) for name in table.parts]
    if table.rows != np.prod(sizes) or table.dim != sum(parts[name].shape[1] for name in table.parts):
        raise InputError(f"the table {' x '.join(table.parts)} does not have the size of its parts")
    for start in range(0, table.rows, _PIECE_ROWS):
        numbers = np.unravel_index(np.arange(start, min(table.rows, start + _PIECE_ROWS)), sizes)
        rows = [parts[name][number] for name, number in zip(table.parts, numbers, strict=True)]
        yield np.ascontiguousarray(np.concatenate(rows, axis=1), np.float32)


def _whole(table: EmbeddingTable, parts: Mapping[str, Floats]) -> Floats:
    rows = np.empty((table.rows, table.dim), np.float32)
    start = 0
    for piece in joined_rows(table, parts):
        rows[start : start + len(piece)] = piece
        start += len(piece)
    return rows


def _joined(parts: Sequence[str], numbers: Mapping[str, Ids], rows: Mapping[str, int]) -> Ids:
    """Row numbers [n] in a joined table: `i * rows of the second part + j` for two parts (`EmbeddingTable.product`)."""
    joined = numbers[parts[0]]
    for name in parts[1:]:
        joined = joined * rows[name] + numbers[name]
    return joined
