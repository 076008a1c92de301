"""`SegmentWriter`: writes one segment from front to back. The file gets its name once it is complete and on disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import stretches
from edge.budget import MemoryBudget
from edge.errors import StorageError, as_storage_error
from edge.files.named_file import write_all
from edge.files.sealed import flush
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, Bytes, Codec, CodecSpec, Ids, Vectors
from edge.ivf.storage.segments import HEADER, PAGE, PART, SegmentEntry, aligned, part_nbytes

SUFFIX = ".blk"
PART_NBYTES = 4 << 20
"""A part ends when its codes and vectors have this many bytes. The rest of its list goes on in the next part."""

_PAGE_ROWS = 4096
_RUN_ROWS = 131_072
"""Ids that are sorted at a time. A segment has one sorted run of pages for each group of this many rows."""

WRITER_NBYTES = 3 * PART_NBYTES
"""Memory of a writer: the part that is being filled, a run of ids, and the workspace for sorting the run."""


class SegmentWriter:
    """A new segment that is being written. A context manager: leaving it without `finish` removes the file."""

    def __init__(self, folder: Path, spec: CodecSpec, budget: MemoryBudget) -> None:
        self._spec = spec
        self._path = folder / (secrets.token_hex(8) + SUFFIX)
        self._temporary = self._path.with_suffix(".tmp")
        self._lease = budget.reserve("index writer", WRITER_NBYTES)
        self._at = 0
        self._rows = 0
        self._parts: list[tuple[int, int, int, int]] = []
        self._pages: list[tuple[int, int, int, int, int]] = []
        self._list = -1
        self._held: list[tuple[Ids, Bytes, Vectors]] = []
        self._held_rows = 0
        self._part_rows = max(1, PART_NBYTES // (ID_NBYTES + spec.code_size + CHECKSUM_NBYTES + 4 * spec.dim))
        self._run: list[Ids] = []
        self._run_start = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb", buffering=0)
        except OSError as error:
            self._lease.release()
            raise StorageError(f"{self._temporary} cannot be created: {error.strerror}") from error
        self._write(HEADER)

    def append(self, list_number: int, ids: Ids, codes: Bytes, vectors: Vectors) -> None:
        """Adds rows of a list; lists come in ascending order. `ids` [n] are new, `codes` [n, code_size] the vectors'
        bytes if the codec is flat, `vectors` [n, dim]."""
        assert list_number >= self._list, "lists are written in order"
        if list_number != self._list:
            self._end_part()
            self._list = list_number
        start = 0
        while start < len(ids):
            end = min(len(ids), start + self._part_rows - self._held_rows)
            self._held.append((ids[start:end], codes[start:end], vectors[start:end]))
            self._held_rows += end - start
            start = end
            if self._held_rows == self._part_rows:
                self._end_part()

    def finish(self) -> SegmentEntry:
        self._end_part()
        self._end_run()
        with as_storage_error(f"{self._path} cannot be completed"):
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._path)
            flush(self._path.parent)
        self._lease.release()
        return SegmentEntry(
            self._path.name, self._rows, self._at, np.array(self._parts, PART), np.array(self._pages, PAGE)
        )

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._held, self._run = [], []
        self._lease.release()
        if not self._file.closed:
            self._file.close()
            with contextlib.suppress(OSError):  # the next maintenance removes it
                self._temporary.unlink()

    def _end_part(self) -> None:
        rows = self._held_rows
        if rows == 0:
            return
        self._seek(part_nbytes(rows, self._spec.code_size))
        offset, crc = self._at, 0
        checksums = [[zlib.crc32(row.data) for row in _contiguous(vectors)] for _, _, vectors in self._held]
        for pieces in (
            [ids for ids, _, _ in self._held],
            [codes for _, codes, _ in self._held],
            [np.array(piece, np.uint32) for piece in checksums],
        ):
            for piece in pieces:
                view = _contiguous(piece).data.cast("B")
                crc = zlib.crc32(view, crc)
                self._write(view)
        if not self._spec.exact:
            self._seek(rows * 4 * self._spec.dim)
            for _, _, vectors in self._held:
                self._write(_contiguous(vectors).data.cast("B"))
        self._parts.append((self._list, rows, crc, offset))
        # Copied, because a slice would keep the caller's whole array alive.
        self._run += [ids.copy() for ids, _, _ in self._held]
        self._rows += rows
        self._held, self._held_rows = [], 0
        if self._rows - self._run_start >= _RUN_ROWS:
            self._end_run()

    def _end_run(self) -> None:
        if not self._run:
            return
        ids = np.concatenate(self._run)
        order = np.argsort(ids)
        for start in range(0, len(ids), _PAGE_ROWS):
            own = order[start : start + _PAGE_ROWS]
            page = ids[own].tobytes() + (own + self._run_start).astype(np.uint32).tobytes()
            self._seek(len(page))
            entry = (int(ids[own[0]]), int(ids[own[-1]]), len(own), zlib.crc32(page), self._at)
            self._pages.append(entry)
            self._write(page)
        self._run, self._run_start = [], self._rows

    def _seek(self, nbytes: int) -> None:
        self._write(bytes(aligned(self._at, nbytes) - self._at))

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            write_all(self._file, view)
        except OSError as error:
            raise StorageError(
                f"writing {self._path.name} failed after {self._at:,} bytes: {error.strerror}; nothing is left of it"
            ) from error
        self._at += len(view)


def _contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array)


Lists = npt.NDArray[np.int32]

_ROWS = 1024
"""Vectors multiplied with the centroids, or encoded, at a time: enough to occupy the cores, and little memory."""


_ROUNDING = 1e-5
"""More than the rounding errors of an inner product of unit vectors."""


def assign(vectors: Vectors, centroids: Vectors) -> tuple[Lists, Vectors]:
    """The list of each of `vectors` [n, dim], whose centroid [nlist, dim] has the largest inner product with it: lists
    [n], products [n].

    It does not depend on the vectors beside it: centroids that are about as near are compared alone. Holds
    `assign_nbytes(nlist)` bytes meanwhile."""
    lists = np.zeros(len(vectors), np.int32)
    scores = np.zeros(len(vectors), np.float32)
    if len(centroids) > 1:
        for start in range(0, len(vectors), _ROWS):
            products = vectors[start : start + _ROWS] @ centroids.T
            best = products.argmax(axis=1)
            near = products >= products.max(axis=1, keepdims=True) - _ROUNDING
            for row in np.flatnonzero(near.sum(axis=1) > 1):
                rivals = np.flatnonzero(near[row])
                best[row] = rivals[np.einsum("ij,j->i", centroids[rivals], vectors[start + row]).argmax()]
            lists[start : start + _ROWS] = best
            scores[start : start + _ROWS] = np.take_along_axis(products, best[:, None], axis=1)[:, 0]
    return lists, scores


def assign_nbytes(nlist: int) -> int:
    """Bytes of the products that `assign` holds, and of their comparison."""
    return _ROWS * nlist * 5


def misfit(vectors: Vectors, scores: Vectors) -> float:
    """Sum over `vectors` [n, dim] of 1 - cosine(vector, unit centroid of its list), from their inner products [n]."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return float(len(vectors) - np.sum(scores / np.maximum(norms, np.finfo(np.float32).tiny)))


def append_by_list(writer: SegmentWriter, codec: Codec, lists: Lists, ids: Ids, vectors: Vectors) -> None:
    """Writes rows by list: `lists` [n], `ids` [n], `vectors` [n, dim], none of a list before the writer's last one."""
    order = np.argsort(lists, kind="stable")
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        block = np.ascontiguousarray(vectors[rows])
        codes = codec.encode(block)
        own = lists[rows]
        for low, high in stretches(own):
            writer.append(int(own[low]), ids[rows[low:high]], codes[low:high], block[low:high])
