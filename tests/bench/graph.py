"""A graph of vectors: its file, and its search in the memory of a device, over the device's link.

The file begins with a header, the checksum of each block, and a checksum of both. The blocks follow, each of the same
number of rows. A row is a float32 vector, the number of its neighbours, and their numbers, filled up with zeros.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.delayed import BITS, STALE, BloomFilter, Evaluated, Launch, Traversal, check_sizes, traverse
from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent
from edge.budget import MemoryBudget
from edge.errors import CapabilityError, CorruptBlock, InputError, RangeError, StorageError
from edge.files.output_file import open_output
from edge.ivf.base import Found, Ids, Vectors
from edge.ivf.device import Place
from edge.ivf.scan import exact_scores
from edge.link import Lane, Ticket
from edge.resident import Closing
from edge.trace import Trace

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
        return self.rows * self.row_nbytes

    @property
    def block_rows(self) -> int:
        return max(1, _BLOCK_NBYTES // self.row_nbytes)

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows)

    @property
    def first(self) -> int:
        head = len(_MAGIC) + _FACTS.size + _WORD * self.blocks
        return -(-head // ALIGNMENT) * ALIGNMENT


def write_graph(path: Path, vectors: Vectors, neighbours: Neighbours, entry: int, budget: MemoryBudget) -> GraphFacts:
    """Writes a graph of `vectors` [n, dim]. The file gets its name when it is complete."""
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
    """Opens a graph's file, whose blocks are `BlockId("rows", number)`. The caller closes it."""
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
    """The base level of faiss's HNSW graph, by inner product, and the vertex where a search enters. It is built by one
    thread, so that the same vectors give the same graph."""
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


_CANDIDATE_NBYTES = 320
"""Bytes of a candidate besides its neighbours: an entry in each queue, and an array's header."""

_VISITING_NBYTES = 160
"""Bytes of a vertex of a launched group: its number, its places in the filter, its distance."""


class RowRequests:
    """The rows of launched groups, requested over a link and evaluated when they are there, one search after the other.
    Each group under way has a buffer of its own."""

    def __init__(self, rows: Vectors, facts: GraphFacts, link: Lane, groups: int, candidates: int) -> None:
        self._rows = rows
        self._facts = facts
        self._link = link
        asked = max(1, candidates * facts.degree)
        self._buffers = [np.empty((asked, rows.shape[1]), np.float32) for _ in range(groups)]
        self._next = 0
        self._flying: deque[Ticket] = deque()

    def of(self, query: Vectors) -> Launch:
        """Launches groups of a query [dim]. Distances are negative inner products."""

        def launch(vertices: Sequence[int]) -> Callable[[], Evaluated]:
            # At most as many groups are under way as there are buffers, and they end in their order.
            buffer = self._buffers[self._next % len(self._buffers)][: len(vertices)]
            self._next += 1

            def gather() -> int:
                self._rows.take(vertices, axis=0, out=buffer, mode="clip")
                return buffer.nbytes

            self._flying.append(self._link.submit("rows of a graph", gather, buffer.nbytes, wake=False))
            return lambda: self._evaluated(buffer, query)

        return launch

    def settle(self) -> None:
        """Withdraws the requests under way, or waits for them. Afterwards nothing writes into a buffer."""
        while self._flying:
            self._flying.popleft().settle()

    def _evaluated(self, buffer: Vectors, query: Vectors) -> Evaluated:
        self._flying[0].wait()
        self._flying.popleft()
        dim = self._facts.dim
        distances: list[float] = (-exact_scores(buffer[:, :dim], query)).tolist()
        return distances, NeighbourLists(buffer[:, dim:].view(np.int32))


class NeighbourLists(Sequence[Sequence[int]]):
    """The neighbours of rows in a buffer. A list is copied when it is taken."""

    def __init__(self, rows: npt.NDArray[np.int32]) -> None:
        """`rows` [n, 1 + degree] begin with the number of neighbours."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> npt.NDArray[np.int32]:  # type: ignore[override]
        row = self._rows[place]
        found: npt.NDArray[np.int32] = row[1 : 1 + row[0]].copy()
        return found


class GraphIndex(Closing):
    """Vectors in a graph of neighbours. Similarity is the inner product; the results are row numbers.

    All rows lie in the memory of one device. The processor requests the rows of each group over the device's link, and
    computes their distances, so the results are those of every other device. For one thread.
    """

    def __init__(self, path: Path, *, device: Place, budget: MemoryBudget, trace: Trace | None = None) -> None:
        if not device.in_host_memory:
            raise CapabilityError(f"a graph needs a device whose memory the processor reads, and not {device.name}")
        self._facts, file = open_graph(path)
        self._device = device
        self._budget = budget
        self._trace = trace or Trace()
        try:
            self._lease = device.memory.reserve("graph", self._facts.nbytes)
            try:
                buffer = device.allocate(self._facts.nbytes)
                step = self._facts.block_rows * self._facts.row_nbytes
                for block in range(self._facts.blocks):
                    part = buffer[block * step : (block + 1) * step]
                    device.link.fetch(file, BlockId("rows", block), part.data).wait()
            except BaseException:
                self._lease.release()
                raise
        finally:
            file.close()
        self._rows = buffer[: self._facts.nbytes].view(np.float32).reshape(self._facts.rows, -1)

    @property
    def facts(self) -> GraphFacts:
        return self._facts

    def search_nbytes(self, length: int, groups: int, candidates: int, bits: int = BITS) -> int:
        """Bytes of one search: the rows under way, the queues and the filter."""
        degree = self._facts.degree
        asked = candidates * degree
        rows = groups * asked * self._facts.row_nbytes
        queues = (STALE * length + asked) * (_CANDIDATE_NBYTES + 4 * degree)
        return rows + queues + groups * asked * _VISITING_NBYTES + bits

    def search(
        self,
        queries: Vectors,
        k: int,
        *,
        length: int,
        groups: int = 1,
        candidates: int = 1,
        bits: int = BITS,
    ) -> Found:
        """The `k` best rows of each query [q, dim], with a queue of `length` results and a Bloom filter of `bits` (see
        `bench.delayed.traverse`)."""
        if queries.ndim != 2 or queries.shape[1] != self._facts.dim:
            raise InputError(f"queries of shape {queries.shape} do not fit rows of {self._facts.dim} dimensions")
        check_sizes(k, length, groups, candidates)
        ids: Ids = np.full((len(queries), k), -1, np.int64)
        scores: Vectors = np.full((len(queries), k), -np.inf, np.float32)
        rows = 0
        with self._budget.reserve("graph search", self.search_nbytes(length, groups, candidates, bits)):
            visited = BloomFilter(bits)
            requests = RowRequests(self._rows, self._facts, self._device.link, groups, candidates)
            for number, query in enumerate(queries):
                found = self._searched(query, k, length, groups, candidates, visited, requests)
                ids[number, : len(found.labels)] = found.labels
                scores[number, : len(found.labels)] = [-distance for distance in found.distances]
                rows += 1 + sum(found.launches)
                self._trace.count("graph.hops", found.hops)
                self._trace.count("graph.groups", len(found.launches))
        self._trace.count("graph.rows", rows)
        self._trace.count("graph.bytes", rows * self._facts.row_nbytes)
        return Found(ids, scores, bytes_read=rows * self._facts.row_nbytes)

    def close(self) -> None:
        self._rows = np.empty((0, 0), np.float32)
        self._lease.release()

    def _searched(
        self, query: Vectors, k: int, length: int, groups: int, candidates: int, visited: BloomFilter,
        requests: RowRequests,
    ) -> Traversal:  # fmt: skip
        visited.clear()
        try:
            return traverse(
                requests.of(query), self._facts.entry, k=k, length=length, groups=groups, candidates=candidates,
                visited=visited,
            )  # fmt: skip
        finally:
            requests.settle()
