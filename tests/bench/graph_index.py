"""`GraphIndex`: a graph in the memory of a device. A search requests its rows over the device's link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.graph_file import GraphFacts, open_graph
from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.errors import CapabilityError, InputError
from edge.ivf.base import Found, Ids, Vectors
from edge.ivf.device import Place
from edge.ivf.scan import exact_scores
from edge.link import Lane, Ticket
from edge.planner.traversal import BITS, STALE, BloomFilter, Evaluated, Launch, Traversal, check_sizes, traverse
from edge.resident import Closing
from edge.trace import Trace

_CANDIDATE_NBYTES = 320
"""Bytes of a candidate besides its neighbours: an entry in each queue, and an array's header."""

_VISITING_NBYTES = 160
"""Bytes of a vertex of a launched group: its number, its places in the filter, its distance."""


class RowRequests:
    """The rows of launched groups, requested over a link and evaluated when they are there. For one thread.

    One search follows the other. Each group under way has a buffer of its own.
    """

    def __init__(self, rows: Vectors, facts: GraphFacts, link: Lane, groups: int, candidates: int) -> None:
        """
        Args:
            rows: the rows as they are in the graph's file, [n, row_nbytes / 4].
            groups: number of groups under way at most.
            candidates: number of candidates of a group at most.
        """
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

    All rows lie in the memory of one device. The processor searches: it requests the rows of each group over the
    device's link, and computes their distances. So the results are those of every other device. For one thread.

    Counters (in `trace`): `graph.hops`, `graph.groups`, `graph.rows` (requested), `graph.bytes`.
    """

    def __init__(self, path: Path, *, device: Place, budget: MemoryBudget, trace: Trace | None = None) -> None:
        """Loads a graph into the device's memory.

        Raises:
            StorageError: the file cannot be read.
            CorruptBlock: the file is damaged.
            BudgetExceeded: the graph does not fit the device's memory.
            CapabilityError: the processor cannot read the device's memory.
        """
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
        """The `k` best rows of each query [q, dim].

        Args:
            length: length of the queue of results; a longer one finds more.
            groups, candidates: see `edge.planner.traversal.traverse`.
            bits: of the Bloom filter of visited rows.

        Raises:
            InputError: the queries have another width than the rows.
            RangeError: a number is out of range.
            BudgetExceeded: the search does not fit the memory limit.
        """
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
        """Frees the device's memory."""
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
