"""The file of a graph: rows of a vector and its neighbours, in blocks with checksums.

The file begins with a header, the checksum of each block, and a checksum of both. The blocks follow, each of the same
number of rows. A row is a float32 vector, the number of its neighbours, and their numbers, filled up with zeros.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent
from edge.budget import MemoryBudget
from edge.errors import CapabilityError, CorruptBlock, InputError, RangeError, StorageError
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


_QUEUE = 100
"""Length of the queue while the graph is built (`efConstruction`)."""

_LEVELS = 1.2
"""Bytes of all levels over those of the base level, at most: a vertex has upper ones with a probability of 2/degree."""

_VERTEX_NBYTES = 32
"""Bytes of a vertex besides vector and neighbours: its level, its offset, its lock."""

_THREAD_NBYTES = 8 << 20
"""Bytes of the queues and of the set of visited vertices of a thread that builds."""


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise CapabilityError("a graph is built by faiss: pip install faiss-cpu") from error
    return faiss


def hnsw_nbytes(rows: int, dim: int, degree: int) -> int:
    """Bytes that `hnsw_graph` holds at most besides the given vectors: faiss's copy of them, its lists, and ours."""
    lists = int(_LEVELS * 4 * degree) * 2 + 2 * 8 * degree
    return rows * (4 * dim + lists + _VERTEX_NBYTES + 4) + _THREAD_NBYTES


def hnsw_graph(vectors: Vectors, degree: int, *, budget: MemoryBudget) -> tuple[Neighbours, int]:
    """The base level of faiss's HNSW graph, by inner product, and the vertex where a search enters.

    It is built by one thread, so that the same vectors give the same graph.

    Args:
        vectors: [n, dim].
        degree: the most neighbours of a vertex, even.

    Raises:
        RangeError: `degree` is odd or below 4.
        CapabilityError: faiss is not installed.
        BudgetExceeded: the graph does not fit the memory limit while it is built.
    """
    if degree < 4 or degree % 2:
        raise RangeError(f"a graph of faiss has an even degree of at least 4, not {degree}")
    faiss = _faiss()
    count, dim = vectors.shape
    with budget.reserve("graph builder", hnsw_nbytes(count, dim, degree)):
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            index = faiss.IndexHNSWFlat(dim, degree // 2, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _QUEUE
            index.add(np.ascontiguousarray(vectors, np.float32))
        finally:
            faiss.omp_set_num_threads(threads)
        hnsw = index.hnsw
        starts = faiss.vector_to_array(hnsw.offsets)[:-1].astype(np.int64)
        numbers = faiss.vector_to_array(hnsw.neighbors)
        neighbours: Neighbours = numbers[starts[:, None] + np.arange(degree)]
        return neighbours, int(hnsw.entry_point)
