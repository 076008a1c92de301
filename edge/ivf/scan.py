"""`Scan`: the lists that a few queries probe: plan, read, scan, rescore, and hand out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from edge.errors import DeviceLost
from edge.ivf.base import DEVIATIONS, RESCORE, CodecSpec, Ids, Snapshot, Vectors
from edge.ivf.device import Candidates, SearchRequest
from edge.ivf.plan import Plan
from edge.ivf.reading import Reader
from edge.ivf.rescoring import Reading, Rescorer, best
from edge.ivf.tiers import Tier

_SPARE = 8
"""Heap slots beyond those asked for: so many rows may tie at the cut before a query is scanned again."""

_WIDER = 8
"""The heap of that next scan is so many times as large."""

_PQ_TABLE_NBYTES = 1024
"""Of a scanner, for each byte of a code: 256 products."""

Emit = Callable[[int, Vectors, Ids], None]
"""Takes a query's number and its best rows: scores [n] and ids [n], n <= k."""


class Scan:
    """One scan of the lists that a few queries probe, on every device that holds some of them. A context manager that
    holds its working memory.

    Attributes:
        plan: what is scanned.
        parts_read, bytes_read, hits: see `Reader`.
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
        places: Sequence[Tier],
        allowed: Ids | None = None,
        evict: bool = True,
        width: int | None = None,
    ) -> None:
        """Plans the scan and takes the memory it works with.

        Args:
            probes: lists of each query [q, n].
            host: reads and scans what no place holds.
            places: further devices, the fastest first; a list is scanned by the first that holds it.
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
        self._places = [tier for tier in places if not tier.lost]
        self._allowed = allowed
        self._evict = evict
        spec = snapshot.codec.spec
        self._wanted = k if spec.exact else k * RESCORE
        self._width = width or self._wanted + _SPARE
        self._lease = host.device.memory.reserve("search", self._memory_needed(spec))
        try:
            self.plan = Plan(snapshot, probes, allowed)
            self._rescorer = None if spec.exact else Rescorer(self.plan, host.device.link, snapshot.dim)
        except BaseException:
            self._lease.release()
            raise
        self._left = list(self.plan.expected)
        self._finished = deque(query for query, parts in enumerate(self._left) if not parts)
        self._seen: list[Candidates] = []
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, emit: Emit) -> None:
        """Scans everything, and hands out each query as soon as its last part is done and its candidates are scored.

        Raises:
            BudgetExceeded: not one read buffer fits.
            CorruptBlock, StorageError: a part cannot be read.
        """
        readers: list[Reader] = []
        readings: deque[Reading] = deque()
        again: list[int] = []
        workers: list[_Worker] = []

        def advance(*, wait: bool) -> None:
            while self._finished:
                self._rescore(self._finished.popleft(), emit, readings, again)
            while readings and (wait or readings[0].ticket.done):
                assert self._rescorer is not None
                scores, ids = self._rescorer.finish(readings[0], self._queries[readings[0].query])
                emit(readings.popleft().query, *best(scores, ids, self._k))

        try:
            wanted: Sequence[int] = range(len(self.plan.parts))
            for tier in self._places:
                try:
                    reader = Reader(tier, self.plan.parts, wanted, read=tier.fills, stream=False, evict=self._evict)
                except DeviceLost:
                    tier.lost = True
                    continue
                readers.append(reader)
                wanted = reader.missing
                if len(reader):
                    workers.append(_Worker(self, tier, reader))
            self._scan_host(wanted, readers, advance)
            for worker in workers:
                worker.join()
                if lost := worker.unscanned():
                    self._scan_host(lost, readers, advance)
            advance(wait=True)
        finally:
            self._stopped = True
            for worker in workers:
                worker.thread.join()
            for reading in readings:
                reading.ticket.settle()
            for reader in readers:
                reader.close()
            for tier in (*self._places, self._host):
                tier.end_round()
        for query in again:
            self._scan_again(query, emit)

    def scan(self, tier: Tier, reader: Reader, between: Callable[[], None]) -> None:
        """Scans what a reader hands out on its tier's device; calls `between` after each request."""
        seen = Candidates.empty(len(self._queries), self._width)
        with self._lock:
            own = len(self._seen)
            self._seen.append(seen)
        for batch in reader:
            try:
                parts = [self.plan.parts[readable.number] for readable in batch]
                scans = [
                    self.plan.scan(readable.number, *tier.unpack(part, readable.buffer))
                    for part, readable in zip(parts, batch, strict=True)
                ]
                request = SearchRequest(
                    self._snapshot.codec,
                    self._queries,
                    [s for s in scans if s.rows is None or len(s.rows)],
                    self.plan.labels,
                    seen,
                )
                seen = tier.device.search(request)
            finally:
                for readable in batch:
                    readable.release()
            reader.scanned += [readable.number for readable in batch]
            with self._lock:
                self._seen[own] = seen
                for item in scans:
                    for query in item.queries:
                        self._left[query] -= 1
                        if not self._left[query]:
                            self._finished.append(query)
            if self._stopped:
                return
            between()

    def __enter__(self) -> Scan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seen.clear()
        self._lease.release()

    def _scan_host(self, wanted: Sequence[int], readers: list[Reader], advance: Callable[..., None]) -> None:
        started = time.perf_counter()
        reader = Reader(self._host, self.plan.parts, wanted, evict=self._evict)
        readers.append(reader)
        self.hits = sum(reader.hits for reader in readers)
        self.parts_read = sum(reader.parts_read for reader in readers)
        self.bytes_read = sum(reader.bytes_read for reader in readers)
        self.scan(self._host, reader, lambda: advance(wait=False))
        if wanted:
            self.slow_seconds = (time.perf_counter() - started) * len(self.plan.parts) / len(wanted)

    def _rescore(self, query: int, emit: Emit, readings: deque[Reading], again: list[int]) -> None:
        """All parts of a query have been scanned: hands it out, or asks for the vectors of its candidates."""
        with self._lock:
            seen = list(self._seen)
        scores = np.concatenate([np.empty(0, np.float32), *(found.scores[query] for found in seen)])
        labels = np.concatenate([np.empty(0, np.int64), *(found.labels[query] for found in seen)])
        taken = labels >= 0
        scores, labels = scores[taken], labels[taken]
        if len(scores) > self._wanted:
            cut = float(np.partition(scores, len(scores) - self._wanted)[len(scores) - self._wanted])
            if cut <= max(found.floor(query) for found in seen):
                again.append(query)  # more rows tie at the cut than a heap has kept
                return
            kept = scores >= cut
            scores, labels = scores[kept], labels[kept]
        if len(scores) > self._k:
            last = np.partition(scores, len(scores) - self._k)[len(scores) - self._k]
            margin = 2 * DEVIATIONS * self._snapshot.codec.deviation(self._queries[query])
            kept = scores >= last - margin
            scores, labels = scores[kept], labels[kept]
        if self._rescorer is None or not len(labels):
            emit(query, *best(scores, self.plan.ids(labels), self._k))
        else:
            readings.append(self._rescorer.begin(query, labels))

    def _scan_again(self, query: int, emit: Emit) -> None:
        one = slice(query, query + 1)
        with Scan(
            self._snapshot, self._queries[one], self._probes[one], self._k, host=self._host, places=self._places,
            allowed=self._allowed, evict=self._evict,
            width=min(self._width * _WIDER, 1 + sum(part.rows for part in self.plan.parts)),
        ) as wider:  # fmt: skip
            wider.run(lambda _, scores, ids: emit(query, scores, ids))

    def _memory_needed(self, spec: CodecSpec) -> int:
        count = len(self._queries)
        workers = 1 + len(self._places)
        tables = spec.code_size * _PQ_TABLE_NBYTES if spec.name == "pq" else 8 * spec.dim
        # Candidates are kept with all that tie with the last of them.
        vectors = 0 if spec.exact else self._width * (4 * spec.dim + 64)
        kept = Candidates.memory_needed(count, self._width) * (workers + 1)
        return Plan.memory_needed(self._snapshot, self._probes) + kept + count * (workers * tables + vectors)


class _Worker:
    """Scans what a place holds in a thread of its own, beside the host."""

    def __init__(self, scan: Scan, tier: Tier, reader: Reader) -> None:
        self._scan = scan
        self._tier = tier
        self._reader = reader
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"edge-scan-{tier.device.name}", daemon=True)
        self.thread.start()

    def join(self) -> None:
        """Waits until everything is scanned.

        Raises:
            CorruptBlock, StorageError: a part could not be read. A device that was lost is no error.
        """
        self.thread.join()
        if self._error is not None:
            raise self._error

    def unscanned(self) -> list[int]:
        """Parts that were still to be scanned when the device was lost."""
        return self._reader.unscanned if self._tier.lost else []

    def _run(self) -> None:
        try:
            self._scan.scan(self._tier, self._reader, lambda: None)
        except DeviceLost:
            self._tier.lost = True
        except BaseException as error:  # raised where the scan is run
            self._error = error
