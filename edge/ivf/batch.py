"""`Batch`: one scan of the lists that a few queries probe, on every tier at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from edge.budget import Lease
from edge.ivf.base import DEVIATIONS, RESCORE, CodecSpec, Ids, Snapshot, Vectors
from edge.ivf.dispatcher import Dispatcher
from edge.ivf.plan import PartScan, Plan
from edge.ivf.rescoring import Reading, Rescorer, best
from edge.ivf.tiers import Reader, Tier

_SPARE = 8
"""Heap slots beyond those asked for: so many rows may tie at the cut before a query is scanned again."""

_WIDER = 8
"""The heap of that next scan is so many times as large."""

_FAILED = -1
"""In place of a finished query."""

_PQ_TABLE_NBYTES = 1024
"""Of a scanner, for each byte of a code: 256 products."""

Emit = Callable[[int, Vectors, Ids], None]
"""Takes a query's number and its best rows: scores [n] and ids [n], n <= k."""


class Batch:
    """One scan; a context manager that holds its working memory.

    Attributes:
        plan: what is scanned.
        parts_read, bytes_read, hits: see `edge.ivf.tiers.Reader`.
        slow_seconds: what the host took, and what it would have taken for all parts; 0 if it had none to scan.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        probes: npt.NDArray[np.int64],
        k: int,
        *,
        host: Tier,
        fast: Tier | None,
        allowed: Ids | None = None,
        evict: bool = True,
        width: int | None = None,
    ) -> None:
        """Plans the scan and takes the memory it works with.

        Args:
            probes: lists of each query [q, n].
            allowed: ids that may be returned, ascending.
            evict: see `Residency.admit`.
            width: rows kept for each query; what k needs if not given.

        Raises:
            BudgetExceeded: it does not fit.
        """
        self.parts_read = self.bytes_read = self.hits = 0
        self.slow_seconds = 0.0
        self._snapshot = snapshot
        self._queries = queries
        self._probes = probes
        self._k = k
        self._host = host
        self._fast = fast
        self._allowed = allowed
        self._evict = evict
        self._readings: deque[Reading] = deque()
        self._again: list[int] = []
        self._side: _Side | None = None
        self._open = len(queries)
        spec = snapshot.codec.spec
        self._wanted = k if spec.exact else k * RESCORE
        self._width = width or self._wanted + _SPARE
        self._lease: Lease = host.device.memory.reserve("search", self._memory_needed(spec))
        try:
            self.plan = Plan(snapshot, probes, allowed)
            self._dispatcher = Dispatcher(self.plan.expected, self._width)
            self._rescorer = None if spec.exact else Rescorer(self.plan, host.device.link, snapshot.dim)
        except BaseException:
            self._lease.release()
            raise

    def run(self, emit: Emit) -> None:
        """Scans everything, and hands out each query as soon as its last part is done and its candidates are scored.

        Raises:
            BudgetExceeded: not one read buffer fits.
            CorruptBlock, StorageError: a part cannot be read.
        """
        self._emit = emit
        readers: list[Reader] = []
        try:
            wanted: Sequence[int] = range(len(self.plan.parts))
            if self._fast is not None:
                readers.append(Reader(self._fast, self.plan.parts, wanted, read=False))
                wanted = readers[0].missing
                self._side = _Side(self, self._fast, readers[0])
            reader = Reader(self._host, self.plan.parts, wanted, evict=self._evict)
            readers.append(reader)
            self.hits = sum(reader.hits for reader in readers)
            self.parts_read, self.bytes_read = reader.parts_read, reader.bytes_read
            self._scan_host(reader, len(wanted))
            while self._open or self._readings:
                self._advance(wait=True)
            if self._side is not None:
                self._side.join()
        finally:
            if self._side is not None:
                self._side.stop()
            for reading in self._readings:
                reading.ticket.settle()
            for reader in readers:
                reader.close()
            for tier in (self._fast, self._host):
                if tier is not None:
                    tier.end_round()
        for query in self._again:
            self._scan_again(query)

    def scan(self, tier: Tier, scans: Iterable[PartScan]) -> None:
        """Scans parts on a tier's device."""
        tier.device.search(self._snapshot.codec, self._queries, scans, self._dispatcher)

    def give_up(self) -> None:
        """The fast tier's scan has failed: wakes who waits for its queries."""
        self._dispatcher.finished.put(_FAILED)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.release()

    def _scan_host(self, reader: Reader, parts: int) -> None:
        started = time.perf_counter()

        def scans() -> Iterator[PartScan]:
            for number, block, release in reader:
                yield PartScan(self.plan, number, block, release)
                if self._readings or not self._dispatcher.finished.empty():
                    self._advance(wait=False)

        self.scan(self._host, scans())
        if parts:
            self.slow_seconds = (time.perf_counter() - started) * len(self.plan.parts) / parts

    def _advance(self, *, wait: bool) -> None:
        """Asks for the vectors of queries whose scan is over, and hands out those whose vectors have come.

        Args:
            wait: until there is something to do.
        """
        finished = self._dispatcher.finished
        # With vectors under way there is something to wait for already.
        while self._open and (not finished.empty() or (wait and not self._readings)):
            query = finished.get()
            if query == _FAILED:
                assert self._side is not None
                self._side.join()  # raises what it met
            self._open -= 1
            self._scanned(query)
        while self._readings and (wait or self._readings[0].ticket.done):
            reading = self._readings[0]
            assert self._rescorer is not None
            scores, ids = self._rescorer.finish(reading, self._queries[reading.query])
            self._readings.popleft()
            self._emit(reading.query, *best(scores, ids, self._k))

    def _scanned(self, query: int) -> None:
        """All parts of a query have been scanned."""
        found = self._dispatcher.collect(query)
        scores, labels = found.scores, found.labels
        if len(scores) > self._wanted:
            cut = float(np.partition(scores, len(scores) - self._wanted)[len(scores) - self._wanted])
            if cut <= found.floor:
                self._again.append(query)  # more rows tie at the cut than a heap has kept
                return
            kept = scores >= cut
            scores, labels = scores[kept], labels[kept]
        if len(scores) > self._k:
            last = np.partition(scores, len(scores) - self._k)[len(scores) - self._k]
            margin = 2 * DEVIATIONS * self._snapshot.codec.deviation(self._queries[query])
            kept = scores >= last - margin
            scores, labels = scores[kept], labels[kept]
        if self._rescorer is None or not len(labels):
            self._emit(query, *best(scores, self.plan.ids(labels), self._k))
        else:
            self._readings.append(self._rescorer.begin(query, labels))

    def _scan_again(self, query: int) -> None:
        one = slice(query, query + 1)
        with Batch(
            self._snapshot,
            self._queries[one],
            self._probes[one],
            self._k,
            host=self._host,
            fast=self._fast,
            allowed=self._allowed,
            evict=self._evict,
            width=min(self._width * _WIDER, 1 + sum(part.rows for part in self.plan.parts)),
        ) as wider:
            wider.run(lambda _, scores, ids: self._emit(query, scores, ids))

    def _memory_needed(self, spec: CodecSpec) -> int:
        count = len(self._queries)
        workers = 1 if self._fast is None else 2
        tables = spec.code_size * _PQ_TABLE_NBYTES if spec.name == "pq" else 8 * spec.dim
        # Candidates are kept with all that tie with the last of them.
        vectors = 0 if spec.exact else self._width * (4 * spec.dim + 64)
        kept = Dispatcher.heap_nbytes(count, self._width) * (workers + 1)
        return Plan.memory_needed(self._snapshot, self._probes) + kept + count * (workers * tables + vectors)


class _Side(threading.Thread):
    """Scans what is resident on the fast device, beside the host."""

    def __init__(self, batch: Batch, tier: Tier, reader: Reader) -> None:
        super().__init__(name="edge-fast-tier", daemon=True)
        self._batch = batch
        self._tier = tier
        self._reader = reader
        self._stopped = False
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._batch.scan(self._tier, self._scans())
        except BaseException as error:  # raised where the batch is run
            self._error = error
            self._batch.give_up()

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopped = True
        super().join()

    def _scans(self) -> Iterator[PartScan]:
        for number, block, release in self._reader:
            if self._stopped:
                return
            yield PartScan(self._batch.plan, number, block, release)
