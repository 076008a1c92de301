"""Blocks: named byte ranges of one file, each with a checksum, read into the caller's buffers by positioned reads. The
owner of the format keeps the table of extents."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock, StorageError, as_storage_error

ALIGNMENT = 4096
"""Blocks start at multiples of this many bytes, so that a read touches no page of its neighbour."""

_CRC_STEP = 1 << 20

_ADVICE = 1 << 17
"""Bytes announced by one call. Of a longer range, Linux may read only the device's read-ahead, often 128 KiB."""


_seeking = threading.Lock()
"""Keeps the seek and the read of one thread together."""


@dataclass(frozen=True, slots=True, order=True)
class BlockId:
    """The name of a block inside its file: `BlockId("layer", 3)`."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}.{self.index}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The position of a block: byte `offset` and `nbytes` in the file, and the CRC-32 of its bytes."""

    offset: int
    nbytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class RowTable:
    """A block of equal rows that may be read one by one: row r is at `offset + r * row_nbytes`."""

    offset: int
    rows: int
    row_nbytes: int


class BlockSource(Protocol):
    def nbytes(self, block: BlockId) -> int: ...

    def read(self, block: BlockId, into: memoryview) -> None: ...


class BlockFile:
    """One file of blocks, open for reading. Thread-safe. A block is checked against its CRC-32 once."""

    def __init__(self, path: str | Path, extents: Mapping[BlockId, Extent], remedy: str = "") -> None:
        """Opens `path`. `remedy` is advice for a damaged block, appended to the error message."""
        self.path = Path(path)
        self.extents = dict(extents)
        self.remedy = remedy
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_NONBLOCK", 0)  # otherwise opening a named pipe would wait for its writer
        with as_storage_error(f"{self.path} cannot be opened"):
            self._fd = os.open(self.path, flags)
        self._verified: set[BlockId] = set()
        size = os.fstat(self._fd).st_size
        last = max(self.extents.items(), key=lambda item: item[1].offset + item[1].nbytes, default=None)
        if last is not None and last[1].offset + last[1].nbytes > size:
            self.close()
            raise CorruptBlock(
                f"{self.path} is truncated: block {last[0]} ends at byte {last[1].offset + last[1].nbytes:,} "
                f"but the file has {size:,}{self._way_out}"
            )

    @property
    def _way_out(self) -> str:
        return f"; {self.remedy}" if self.remedy else ""

    def nbytes(self, block: BlockId) -> int:
        return self.extents[block].nbytes

    def read(self, block: BlockId, into: memoryview) -> None:
        extent = self.extents[block]
        if len(into) < extent.nbytes:
            raise ValueError(f"block {block} has {extent.nbytes:,} bytes, the buffer {len(into):,}")
        view = into[: extent.nbytes]
        self._pread(view, extent.offset, what=str(block))
        if block not in self._verified:
            found = _crc32(view)
            if found != extent.crc32:
                raise CorruptBlock(
                    f"{self.path}: block {block} is corrupt (checksum {found:08x}, expected {extent.crc32:08x})"
                    f"{self._way_out}"
                )
            self._verified.add(block)

    def read_rows(self, table: RowTable, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> int:
        """Reads rows [n], ascending, unique, into `out` [n, row_nbytes]; returns the bytes. IndexError outside."""
        if len(rows) == 0:
            return 0
        for row in (int(rows[0]), int(rows[-1])):
            if not 0 <= row < table.rows:
                raise IndexError(f"row {row} is not among the table's {table.rows:,}")
        self.read_scattered((table.offset + rows * table.row_nbytes).tolist(), out)
        return out.nbytes

    def read_scattered(self, offsets: Sequence[int], out: npt.NDArray[np.uint8]) -> None:
        """Reads rows at `offsets` [n], in bytes, ascending, into `out` [n, row_nbytes]; adjacent ones together."""
        size = out.shape[1]
        flat = out.reshape(-1).data
        for low, high in _runs(offsets, size):
            self._pread(flat[low * size : high * size], offsets[low], what=f"the rows at byte {offsets[low]:,}")

    def read_resident(self, offsets: Sequence[int], out: npt.NDArray[np.uint8]) -> int:
        """As `read_scattered`, up to the first row outside the page cache; returns how many, 0 if unknown."""
        if not (hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")):
            return 0
        size = out.shape[1]
        flat = out.reshape(-1).data
        for low, high in _runs(offsets, size):
            try:
                count = os.preadv(self._fd, [flat[low * size : high * size]], offsets[low], os.RWF_NOWAIT)
            except OSError:  # not cached, or the file system lacks the flag; `read_scattered` reports real errors
                return low
            if count < (high - low) * size:
                return low
        return len(offsets)

    def announce(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Tells the system which ranges (offset, nbytes) will be read soon, where it can be told."""
        if hasattr(os, "posix_fadvise"):
            for offset, nbytes in ranges:
                for start in range(offset, offset + nbytes, _ADVICE):
                    length = min(_ADVICE, offset + nbytes - start)
                    os.posix_fadvise(self._fd, start, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pread(self, view: memoryview, offset: int, what: str) -> None:
        try:
            done = read_at(self._fd, view, offset)
        except OSError as error:
            raise StorageError(f"{self.path}: reading {what} failed: {error.strerror}") from error
        if done < len(view):
            raise CorruptBlock(f"{self.path} ends inside {what}, {len(view) - done:,} bytes early{self._way_out}")


def read_at(descriptor: int, into: memoryview, offset: int) -> int:
    """Fills `into` from a position of a file. Returns the number of bytes, which is smaller where the file ends."""
    done = 0
    while done < len(into):
        if hasattr(os, "preadv"):
            count = os.preadv(descriptor, [into[done:]], offset + done)
        else:
            with _seeking:  # Windows has no positioned read
                os.lseek(descriptor, offset + done, os.SEEK_SET)
                data = os.read(descriptor, len(into) - done)
            count = len(data)
            into[done : done + count] = data
        if not count:
            break
        done += count
    return done


def _runs(offsets: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of rows of `size` bytes that are adjacent in the file."""
    start = 0
    for place, offset in enumerate(offsets, 1):
        if place == len(offsets) or offsets[place] != offset + size:
            yield start, place
            start = place


def _crc32(view: memoryview) -> int:
    value = 0
    for start in range(0, len(view), _CRC_STEP):
        value = zlib.crc32(view[start : start + _CRC_STEP], value)
    return value


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct values of integers, ascending. `np.unique` imports `numpy.ma`, which takes 15 ms."""
    ordered = np.sort(numbers, axis=None)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def stretches(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """The stretches [low, high) of equal neighbours in an array [n]."""
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(pairwise(cuts)) if len(values) else []
