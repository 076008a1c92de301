"""The file of a graph: rows of a vector and its neighbours, in blocks with checksums.

The file begins with a header, the checksum of each block, and a checksum of both. The blocks follow, each of the same
number of rows. A row is a float32 vector, the number of its neighbours, and their numbers, filled up with zeros.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent
from edge.budget import MemoryBudget
from edge.errors import CorruptBlock, InputError, StorageError
from edge.files.output_file import open_output
from edge.ivf.base import Vectors

Neighbours = npt.NDArray[np.int32]
"""The neighbours of each vertex, [n, degree]; -1 in the places behind the last one."""

_MAGIC = b"edge graph 1\n".ljust(16, b"\0")
_FACTS = struct.Struct("<4QI")
"""Rows, dimensions, degree and entry; then the checksum of magic, facts and block checksums."""

_BLOCK_NBYTES = 1 << 20
_WORD = 4


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The size of a graph: number of rows, dimensions, most neighbours of a vertex, and the vertex of entry."""

    rows: int
    dim: int
    degree: int
    entry: int

    @property
    def row_nbytes(self) -> int:
        return _WORD * (self.dim + 1 + self.degree)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_nbytes

    @property
    def block_rows(self) -> int:
        return max(1, _BLOCK_NBYTES // self.row_nbytes)

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows)

    @property
    def first(self) -> int:
        """Offset of the first block."""
        head = len(_MAGIC) + _FACTS.size + _WORD * self.blocks
        return -(-head // ALIGNMENT) * ALIGNMENT


def write_graph(path: Path, vectors: Vectors, neighbours: Neighbours, entry: int, budget: MemoryBudget) -> GraphFacts:
    """Writes a graph of `vectors` [n, dim]. The file gets its name when it is complete.

    Raises:
        InputError: the shapes do not agree, or a neighbour or the entry is not a row.
        StorageError: the file cannot be written.
        BudgetExceeded: a block does not fit the memory limit.
    """
    count, dim = vectors.shape
    facts = GraphFacts(count, dim, neighbours.shape[1], entry)
    if len(neighbours) != count or not 0 <= entry < count or not -1 <= neighbours.min() <= neighbours.max() < count:
        raise InputError(f"{len(neighbours):,} lists of neighbours and entry {entry} do not belong to {count:,} rows")
    with budget.reserve("graph writer", 2 * facts.block_rows * facts.row_nbytes):
        try:
            with open_output(path) as file:
                file.write(bytes(facts.first))
                sums = np.zeros(facts.blocks, "<u4")
                for block in range(facts.blocks):
                    own = slice(block * facts.block_rows, (block + 1) * facts.block_rows)
                    rows = _rows(vectors[own], neighbours[own]).data
                    sums[block] = zlib.crc32(rows)
                    file.write(rows)
                file.seek(0)
                head = _MAGIC + _FACTS.pack(count, dim, facts.degree, entry, 0)[:-_WORD]
                file.write(head + struct.pack("<I", zlib.crc32(head + sums.tobytes())) + sums.tobytes())
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    return facts


def open_graph(path: Path) -> tuple[GraphFacts, BlockFile]:
    """Opens a graph's file, whose blocks are `BlockId("rows", number)`. The caller closes it.

    Raises:
        StorageError: the file cannot be read.
        CorruptBlock: the header is damaged, or the file is shorter than its header says.
    """
    damaged = f"{path} is not a graph, or its header is damaged"
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC) + _FACTS.size)
            if len(head) < len(_MAGIC) + _FACTS.size or not head.startswith(_MAGIC):
                raise CorruptBlock(damaged)
            *numbers, checksum = _FACTS.unpack_from(head, len(_MAGIC))
            facts = GraphFacts(*numbers)
            size = path.stat().st_size
            # A damaged number must not make the program read or allocate as much as it says.
            if not facts.rows or facts.nbytes > size or facts.degree > size:
                raise CorruptBlock(f"{path} is truncated, or its header is damaged")
            table = file.read(_WORD * facts.blocks)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if zlib.crc32(head[:-_WORD] + table) != checksum:
        raise CorruptBlock(damaged)
    extents = {}
    nbytes = facts.block_rows * facts.row_nbytes
    for block, crc in enumerate(np.frombuffer(table, "<u4").tolist()):
        start = block * nbytes
        extents[BlockId("rows", block)] = Extent(facts.first + start, min(nbytes, facts.nbytes - start), crc)
    return facts, BlockFile(path, extents, remedy="build the graph again")


def _rows(vectors: Vectors, neighbours: Neighbours) -> npt.NDArray[np.int32]:
    held = neighbours >= 0
    rows = np.zeros((len(vectors), vectors.shape[1] + 1 + neighbours.shape[1]), "<i4")
    rows[:, : vectors.shape[1]] = np.ascontiguousarray(vectors, "<f4").view("<i4")
    rows[:, vectors.shape[1]] = held.sum(axis=1)
    order = np.argsort(~held, axis=1, kind="stable")  # places without a neighbour go to the end
    rows[:, vectors.shape[1] + 1 :] = np.take_along_axis(np.where(held, neighbours, 0), order, axis=1)
    return rows
