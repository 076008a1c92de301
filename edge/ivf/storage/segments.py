"""`IndexSegment`: an immutable file of list parts, and of sorted pages that map ids to rows.

Row numbers count through the parts in file order. After a header each part is a block (see `ListPart`) and, unless the
codes are the vectors, its float32 rows. Pages of ids lie between the parts."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent, RowTable, stretches
from edge.budget import Lease, MemoryBudget
from edge.errors import CorruptBlock
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, NO_ROWS, Bytes, CodecSpec, Ids, ListPart, Vectors

HEADER = b"edge ivf segment 1\n".ljust(64, b"\0")

PART = np.dtype([("list", "<i4"), ("rows", "<u4"), ("crc", "<u4"), ("offset", "<i8")])
"""One list part: its list, number of rows, and the checksum and offset of its block."""

PAGE = np.dtype([("first", "<i8"), ("last", "<i8"), ("rows", "<u4"), ("crc", "<u4"), ("offset", "<i8")])
"""One page of ids: its smallest and largest id, number of ids, checksum and offset."""

_PAGE_ENTRY = 12
"""Bytes of an id and its row number in a page."""

_SLICE_NBYTES = 1 << 20
"""Float32 rows read at a time."""

_PART_MEMORY = 900
"""Bytes of Python objects that an open segment and its snapshots hold for each part or page (measured)."""

Table = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The manifest's entry for a segment: file name, rows, size in bytes, and tables of parts and pages."""

    name: str
    rows: int
    nbytes: int
    parts: Table
    pages: Table


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of one list: row numbers in the segment [n], ids [n], codes [n, code_size], vectors [n, dim]."""

    list: int
    rows: Ids
    ids: Ids
    codes: Bytes
    vectors: Vectors


def aligned(offset: int, nbytes: int) -> int:
    """The first offset for a block of `nbytes` at or after `offset`. Large blocks share no page with others."""
    step = ALIGNMENT if nbytes >= 16 * ALIGNMENT else 64
    return -(-offset // step) * step


def part_nbytes(rows: int, code_size: int) -> int:
    return rows * (ID_NBYTES + code_size + CHECKSUM_NBYTES)


class IndexSegment(BlockFile):
    """An open segment. Thread-safe. It is closed with the last reference to it."""

    def __init__(self, folder: Path, entry: SegmentEntry, spec: CodecSpec, budget: MemoryBudget) -> None:
        self.name = entry.name
        self.rows = entry.rows
        self.size = entry.nbytes
        self.parts = entry.parts
        self.pages = entry.pages
        self.spec = spec
        self.starts = np.concatenate(([0], np.cumsum(entry.parts["rows"], dtype=np.int64)))
        lease = budget.reserve("index tables", _PART_MEMORY * (len(entry.parts) + len(entry.pages)))
        try:
            super().__init__(folder / entry.name, self._extents())
        except BaseException:
            lease.release()
            raise
        # Not `__del__`: while a `__del__` runs, a weak reference still leads to the object.
        self._end = weakref.finalize(self, _release, self._fd, lease)
        found = self.path.stat().st_size
        if found < self.size:
            self.close()
            raise CorruptBlock(f"{self.path} is truncated: it has {found:,} of {self.size:,} bytes")

    def close(self) -> None:
        if hasattr(self, "_end"):
            self._end()
            self._fd = -1
        else:
            super().close()

    def list_part(self, number: int, deleted: npt.NDArray[np.int32] = NO_ROWS) -> ListPart:
        rows = int(self.parts["rows"][number])
        return ListPart(
            source=self,
            codes=BlockId("codes", number),
            vectors=None if self.spec.exact else self._vectors(number),
            rows=rows,
            nbytes=part_nbytes(rows, self.spec.code_size),
            key=(self.name, number),
            deleted=deleted,
        )

    def stream(self, skip: Ids, parts: range | list[int] | None = None) -> Iterator[RowBlock]:
        """Yields verified rows in file order, a slice at a time, without those to skip (ascending)."""
        for number in range(len(self.parts)) if parts is None else parts:
            start, end = int(self.starts[number]), int(self.starts[number + 1])
            low, high = np.searchsorted(skip, (start, end))
            keep = np.ones(end - start, np.bool_)
            keep[skip[low:high] - start] = False
            if not keep.any():
                continue
            part, block = self._read_part(number)
            ids, codes, checksums = part.split(block)
            list_number = int(self.parts["list"][number])
            if part.vectors is None:
                rows = np.flatnonzero(keep)
                vectors = codes.view(np.float32)
                if len(rows) < len(keep):
                    ids, codes, vectors = ids[rows], codes[rows], vectors[rows]
                yield RowBlock(list_number, rows + start, ids, codes, vectors)
                continue
            step = max(1, _SLICE_NBYTES // part.vectors.row_nbytes)
            for at in range(0, part.rows, step):
                rows = at + np.flatnonzero(keep[at : at + step])
                if len(rows):
                    vectors = self._read_vectors(number, part.vectors, rows, checksums[rows])
                    yield RowBlock(list_number, rows + start, ids[rows], codes[rows], vectors)

    def lookup(self, ids: Ids) -> Ids:
        """Row numbers [n] of `ids` [n] (ascending, unique), deleted rows included; -1 if the segment has no such id."""
        rows = np.full(len(ids), -1, np.int64)
        low = np.searchsorted(ids, self.pages["first"])
        high = np.searchsorted(ids, self.pages["last"], side="right")
        for number in np.flatnonzero(high > low).tolist():
            page = self.read_page(number)
            count = int(self.pages["rows"][number])
            held = page[: count * ID_NBYTES].view(np.int64)
            wanted = ids[low[number] : high[number]]
            at = np.minimum(np.searchsorted(held, wanted), count - 1)
            hit = held[at] == wanted
            found = page[count * ID_NBYTES :].view(np.uint32)[at[hit]]
            rows[low[number] : high[number]][hit] = found
        return rows

    def read_page(self, number: int) -> Bytes:
        """Reads a page of ids and row numbers, and verifies its checksum."""
        return self._read_block(BlockId("ids", number))

    def ids(self, rows: Ids) -> Ids:
        out = np.empty(len(rows), np.int64)
        for number, low, high in self._by_part(rows):
            part, block = self._read_part(number)
            out[low:high] = part.split(block)[0][rows[low:high] - self.starts[number]]
        return out

    def vectors(self, rows: Ids) -> Vectors:
        """The vectors [n, dim] of rows `rows` [n] (ascending, unique), read one by one and verified."""
        out = np.empty((len(rows), self.spec.dim), np.float32)
        for number, low, high in self._by_part(rows):
            own = rows[low:high] - self.starts[number]
            count = int(self.parts["rows"][number])
            offset = int(self.parts["offset"][number]) + count * (ID_NBYTES + self.spec.code_size)
            checksums = np.empty((len(own), CHECKSUM_NBYTES), np.uint8)
            self.read_rows(RowTable(offset, count, CHECKSUM_NBYTES), own, checksums)
            out[low:high] = self._read_vectors(number, self._vectors(number), own, checksums.view(np.uint32)[:, 0])
        return out

    def lists(self, rows: Ids) -> npt.NDArray[np.int32]:
        return self.parts["list"][self.part_of(rows)]

    def part_of(self, rows: Ids) -> Ids:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _by_part(self, rows: Ids) -> Iterator[tuple[int, int, int]]:
        """Groups `rows`, which ascend, by part: (part, low, high) for `rows[low:high]`."""
        numbers = self.part_of(rows)
        for low, high in stretches(numbers):
            yield int(numbers[low]), low, high

    def _vectors(self, number: int) -> RowTable:
        rows, offset = int(self.parts["rows"][number]), int(self.parts["offset"][number])
        width = 4 * self.spec.dim
        if self.spec.exact:
            return RowTable(offset + rows * ID_NBYTES, rows, width)
        return RowTable(aligned(offset + part_nbytes(rows, self.spec.code_size), rows * width), rows, width)

    def _read_part(self, number: int) -> tuple[ListPart, Bytes]:
        return self.list_part(number), self._read_block(BlockId("codes", number))

    def _read_block(self, block: BlockId) -> Bytes:
        buffer = np.empty(self.nbytes(block), np.uint8)
        self.read(block, buffer.data)
        return buffer

    def _read_vectors(self, number: int, table: RowTable, rows: Ids, checksums: npt.NDArray[np.uint32]) -> Vectors:
        raw = np.empty((len(rows), table.row_nbytes), np.uint8)
        self.read_rows(table, rows, raw)
        for row, data, checksum in zip(rows.tolist(), raw, checksums.tolist(), strict=True):
            if zlib.crc32(data.data) != checksum:
                raise CorruptBlock(f"{self.path}: vector {row} of block codes.{number} is corrupt: wrong checksum")
        return raw.view(np.float32)

    def _extents(self) -> dict[BlockId, Extent]:
        size = self.spec.code_size
        extents = {
            BlockId("codes", number): Extent(offset, part_nbytes(rows, size), crc)
            for number, (_, rows, crc, offset) in enumerate(self.parts.tolist())
        }
        for number, (_, _, rows, crc, offset) in enumerate(self.pages.tolist()):
            extents[BlockId("ids", number)] = Extent(offset, rows * _PAGE_ENTRY, crc)
        return extents


def _release(fd: int, lease: Lease) -> None:
    os.close(fd)
    lease.release()


class OpenSegments:
    """The segments of one folder that are in use in this process, each opened once. Thread-safe."""

    def __init__(self, folder: Path, budget: MemoryBudget) -> None:
        self.folder = folder
        self._budget = budget
        self._open: weakref.WeakValueDictionary[str, IndexSegment] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, entry: SegmentEntry, spec: CodecSpec) -> IndexSegment:
        with self._lock:
            segment = self._open.get(entry.name)
            if segment is None:
                segment = IndexSegment(self.folder, entry, spec, self._budget)
                self._open[entry.name] = segment
            return segment

    def remove(self, name: str) -> bool:
        """Deletes a file unless this process reads it or the system refuses. Returns whether the file is gone."""
        with self._lock, contextlib.suppress(PermissionError):
            if name not in self._open:
                (self.folder / name).unlink(missing_ok=True)
                return True
        return False
