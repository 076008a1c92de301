"""A disk that a test can watch, hold and break."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, RowTable
from edge.errors import StorageError
from naive.waiting import PATIENCE_S


class MemorySource:
    """Blocks in a dictionary. Reading a `broken` one fails. While `gate` is cleared, reads wait there; `entered` is set
    by the read that has arrived."""

    def __init__(self, blocks: dict[BlockId, bytes]) -> None:
        self.blocks = blocks
        self.reads: list[BlockId] = []
        self.broken: set[BlockId] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._buffers: dict[int, weakref.ref[npt.NDArray[np.uint8]]] = {}

    def nbytes(self, block: BlockId) -> int:
        return len(self.blocks[block])

    def read(self, block: BlockId, into: memoryview) -> None:
        with contextlib.suppress(TypeError):  # only arrays can be watched
            self._buffers[id(into.obj)] = weakref.ref(into.obj)
        self.entered.set()
        assert self.gate.wait(PATIENCE_S), "a test forgot to open the gate"
        self.reads.append(block)
        if block in self.broken:
            into[:] = b"\xff" * len(into)  # half-arrived rubbish must never be taken for a block
            raise StorageError(f"the disk cannot read {block}")
        into[: self.nbytes(block)] = self.blocks[block]

    def buffers_alive(self) -> int:
        """Distinct buffers that were read into and still take memory."""
        return sum(reference() is not None for reference in self._buffers.values())


def numbered_blocks(sizes: Iterable[int], seed: int = 0) -> dict[BlockId, bytes]:
    """Random blocks `layer.0`, `layer.1`, ... of the given sizes."""
    random = np.random.default_rng(seed)
    return {BlockId("layer", i): random.bytes(size) for i, size in enumerate(sizes)}


class MemoryRows:
    """A table of rows [rows, row_nbytes] that remembers which were read."""

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self.rows = rows
        self.table = RowTable(0, rows.shape[0], rows.shape[1])
        self.reads: list[list[int]] = []

    def read_rows(self, table: RowTable, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> int:
        assert table == self.table
        assert np.all(np.diff(rows) > 0), "rows must be ascending and unique"
        self.reads.append(rows.tolist())
        out[:] = self.rows[rows]
        return out.nbytes
