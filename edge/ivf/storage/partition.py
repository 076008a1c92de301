"""`Runs`: sorts any number of rows by list in bounded memory, through scratch files for ranges of lists."""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.errors import StorageError
from edge.files.output_file import write_all
from edge.ivf.assignment import Lists, append_by_list
from edge.ivf.base import Codec, Ids, Vectors
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.resident import Closing

_MOST_FILES = 96
"""Files open at once. Some systems allow a process no more than 256."""

_READ_NBYTES = 1 << 20


class Runs(Closing):
    """Scratch files, one for each range of lists. A context manager that removes them on exit."""

    def __init__(self, folder: Path, dim: int, sizes: npt.NDArray[np.int64], room: int) -> None:
        """
        Args:
            sizes: rows expected in each list [nlist].
            room: bytes of rows that may be in memory while lists are written.
        """
        self._record = np.dtype([("list", "<i4"), ("id", "<i8"), ("vector", "<f4", (dim,))])
        self._room = max(1, room // self._record.itemsize)
        # A file fills half the memory on average, since the sizes are estimates.
        count = min(_MOST_FILES, len(sizes), 1 + 2 * int(sizes.sum()) // self._room)
        before = np.cumsum(sizes) - sizes
        self._group = np.minimum(count - 1, before * count // max(1, int(sizes.sum()))).astype(np.int32)
        token = secrets.token_hex(8)
        self._paths = [folder / f"{token}-{number}.run.tmp" for number in range(count)]
        self._files: list[io.FileIO] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in self._paths:
                self._files.append(path.open("w+b", buffering=0))
        except OSError as error:
            self.close()
            raise StorageError(f"{folder} takes no scratch files: {error.strerror}") from error

    def add(self, lists: Lists, ids: Ids, vectors: Vectors) -> None:
        """Adds rows: `lists` [n], `ids` [n], `vectors` [n, dim].

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        groups = self._group[lists]
        order = np.argsort(groups, kind="stable")
        records = np.empty(len(ids), self._record)
        records["list"], records["id"], records["vector"] = lists[order], ids[order], vectors[order]
        groups = groups[order]
        cuts = (np.flatnonzero(np.diff(groups)) + 1).tolist()
        for low, high in zip([0, *cuts], [*cuts, len(records)], strict=True):
            self._write(int(groups[low]), records[low:high])

    def drain(self, writer: SegmentWriter, codec: Codec) -> Iterator[int]:
        """Writes all rows in the order of their lists, and removes each file when it is done.

        Yields the number of rows written so far, so that the caller can stop in between.

        Raises:
            StorageError: the disk is full or cannot be read or written.
        """
        done = 0
        for number, file in enumerate(self._files):
            keys = np.concatenate([np.empty(0, np.int32), *(block["list"].copy() for block in self._blocks(file))])
            for low, high, rows in self._ranges(keys):
                if rows > self._room:  # a single list: its rows may come in any order
                    for block in self._blocks(file):
                        own = block[block["list"] == low]
                        append_by_list(writer, codec, own["list"], own["id"], own["vector"])
                else:
                    held = np.empty(rows, self._record)
                    at = 0
                    for block in self._blocks(file):
                        own = block[(block["list"] >= low) & (block["list"] < high)]
                        held[at : at + len(own)] = own
                        at += len(own)
                    append_by_list(writer, codec, held["list"], held["id"], held["vector"])
                done += rows
                yield done
            file.close()
            self._remove(self._paths[number])

    def close(self) -> None:
        """Closes and removes the remaining files."""
        for file in self._files:
            file.close()
        for path in self._paths:
            self._remove(path)

    def _ranges(self, keys: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        """Ranges of lists whose rows fit the memory, as (first, past the last, rows); a single list may exceed it."""
        lists, counts = np.unique(keys, return_counts=True)
        start = 0
        while start < len(lists):
            end, rows = start + 1, int(counts[start])
            while end < len(lists) and rows + int(counts[end]) <= self._room:
                rows += int(counts[end])
                end += 1
            yield int(lists[start]), int(lists[end - 1]) + 1, rows
            start = end

    def _blocks(self, file: io.FileIO) -> Iterator[npt.NDArray[np.void]]:
        size = self._record.itemsize
        step = max(1, _READ_NBYTES // size) * size
        try:
            file.seek(0)
            while True:
                data = bytearray()
                while len(data) < step and (more := file.read(step - len(data))):
                    data += more
                if not data:
                    return
                yield np.frombuffer(data, self._record)
        except OSError as error:
            raise StorageError(f"a scratch file cannot be read: {error.strerror}") from error

    def _write(self, number: int, records: npt.NDArray[np.void]) -> None:
        view = np.ascontiguousarray(records).view(np.uint8).data
        try:
            write_all(self._files[number], view)
        except OSError as error:
            raise StorageError(
                f"sorting {len(self._paths)} scratch files of the index failed: {error.strerror}; nothing has changed"
            ) from error

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the next maintenance removes it
            path.unlink(missing_ok=True)
