"""`Scan`: plans, reads, scans and re-scores the lists that a few queries probe."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, RowTable, stretches
from edge.errors import BudgetExceeded, CorruptBlock, DeviceLost
from edge.ivf.base import DEVIATIONS, Bytes, Codec, CodecSpec, Found, Ids, Snapshot, Vectors
from edge.ivf.device import Candidates, SearchRequest
from edge.ivf.plan import ScanPlan
from edge.ivf.reading import DeviceTier, Reader
from edge.link import Lane, Ticket
from edge.resident import Closing

_SPARE = 8
"""Places in a heap beyond the wanted rows. If more rows than this tie at the cut, the query is scanned again."""

_WIDER = 8
"""Factor by which the heap of the second scan is larger."""

_PQ_TABLE_NBYTES = 1024
"""Bytes of a scanner's table for each byte of a code: 256 products."""

Emit = Callable[[int, Vectors, Ids], None]
"""Takes a query's number and its best rows: scores [n] and ids [n], n <= k."""


class Scan(Closing):
    """One scan of a few queries' lists, on the host and the further device, with a lease for its memory."""

    def __init__(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        probes: npt.NDArray[np.int64],
        k: int,
        *,
        host: DeviceTier,
        place: DeviceTier | None,
        allowed: Ids | None = None,
        evict: bool = True,
        width: int | None = None,
    ) -> None:
        """Plans the scan of `probes` [q, n], of which `place` scans the lists that it holds.
        `allowed`: ascending ids. `width`: rows kept for each query."""
        self.parts_read = self.bytes_read = self.hits = 0
        self._host_seconds, self._host_parts = 0.0, 0
        self._round: int | None = None
        self._snapshot = snapshot
        self._queries = queries
        self._probes = probes
        self._k = k
        self._host = host
        self._place = None if place is None or place.lost else place
        self._allowed = allowed
        self._evict = evict
        spec = snapshot.codec.spec
        self._wanted = k if spec.exact else k * snapshot.rescore
        self._width = width or self._wanted + _SPARE
        self._lease = host.device.memory.reserve("search", self._memory_needed(spec))
        try:
            self.plan = ScanPlan(snapshot, probes, allowed)
            self._rescorer = None if spec.exact else Rescorer(self.plan, host.device.link, snapshot.dim)
        except BaseException:
            self._lease.release()
            raise
        self._left = list(self.plan.expected)
        self._finished = deque(query for query, parts in enumerate(self._left) if not parts)
        self._seen: list[Candidates] = []
        self._place_of: dict[DeviceTier, int] = {}  # of each tier's candidates in `_seen`
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, emit: Emit) -> None:
        """Scans all parts. Emits each query as soon as its last part is scanned and its candidates are scored."""
        readers: list[Reader] = []
        readings: deque[RowReading] = deque()
        again: list[int] = []
        worker: _Worker | None = None

        def advance(*, wait: bool) -> None:
            while self._finished:
                self._rescore(self._finished.popleft(), emit, readings, again)
            while readings and (wait or readings[0].ticket.done):
                assert self._rescorer is not None
                scores, ids = self._rescorer.finish(readings[0], self._queries[readings[0].query])
                emit(readings.popleft().query, *best(scores, ids, self._k))

        try:
            wanted: Sequence[int] = range(len(self.plan.parts))
            if self._place is not None:
                try:
                    readers.append(Reader(self._place, self.plan.parts, wanted, stream=False, evict=self._evict))
                except DeviceLost as error:
                    self._place.fail(error)
                else:
                    wanted = readers[0].missing
                    if len(readers[0]):
                        worker = _Worker(self, self._place, readers[0])
            self._scan_host(wanted, readers, advance)
            if worker is not None:
                most = 1  # a slow host is noticed before it has taken much
                while given := worker.give(most):
                    self._scan_host(given, readers, advance)
                    most *= 2
                worker.join()
                if lost := worker.unscanned():
                    self._scan_host(lost, readers, advance)
            advance(wait=True)
            self.hits = sum(reader.hits for reader in readers)
            self.parts_read = sum(reader.parts_read for reader in readers)
            self.bytes_read = sum(reader.bytes_read for reader in readers)
        finally:
            self._stopped = True
            if worker is not None:
                worker.thread.join()
            for reading in readings:
                reading.ticket.settle()
            for reader in readers:
                reader.close()
            if self._place is not None:
                self._place.end_round()
            self._host.end_round()
        for query in again:
            self._scan_again(query, emit)

    def scan(self, tier: DeviceTier, reader: Reader, between: Callable[[], None]) -> None:
        """Scans the parts that a reader hands out on its tier's device; calls `between` after each request."""
        with self._lock:
            own = self._place_of.setdefault(tier, len(self._seen))
            if own == len(self._seen):
                self._seen.append(Candidates.empty(len(self._queries), self._width))
            seen = self._seen[own]
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
                started = time.perf_counter()
                seen = tier.device.search(request)
                rows = sum((s.count if s.rows is None else len(s.rows)) * len(s.queries) for s in request.lists)
                tier.learn(rows * self._snapshot.codec.spec.code_size, time.perf_counter() - started)
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

    @property
    def slow_seconds(self) -> float:
        """Seconds the host would take to scan all parts, extrapolated from its own share; 0 if it had none."""
        return self._host_seconds * len(self.plan.parts) / self._host_parts if self._host_parts else 0.0

    def close(self) -> None:
        self._seen.clear()
        self._lease.release()

    def _scan_host(self, wanted: Sequence[int], readers: list[Reader], advance: Callable[..., None]) -> None:
        """Scans parts on the host: those not in the place and not on their way to it yet."""
        started = time.perf_counter()
        reader = Reader(self._host, self.plan.parts, wanted, evict=self._evict, now=self._round)
        self._round = reader.round
        readers.append(reader)
        self.scan(self._host, reader, lambda: advance(wait=False))
        self._host_seconds += time.perf_counter() - started
        self._host_parts += len(wanted)

    def _rescore(self, query: int, emit: Emit, readings: deque[RowReading], again: list[int]) -> None:
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
            emit(query, *best(scores, self.plan.ids[labels], self._k))
        else:
            readings.append(self._rescorer.begin(query, labels))

    def _scan_again(self, query: int, emit: Emit) -> None:
        one = slice(query, query + 1)
        with Scan(
            self._snapshot, self._queries[one], self._probes[one], self._k, host=self._host, place=self._place,
            allowed=self._allowed, evict=self._evict,
            width=min(self._width * _WIDER, 1 + sum(part.rows for part in self.plan.parts)),
        ) as wider:  # fmt: skip
            wider.run(lambda _, scores, ids: emit(query, scores, ids))

    def _memory_needed(self, spec: CodecSpec) -> int:
        count = len(self._queries)
        workers = 1 if self._place is None else 2
        tables = spec.code_size * _PQ_TABLE_NBYTES if spec.has_tables else 8 * spec.dim
        # Space for the candidates, including those that tie with the last of them.
        vectors = 0 if spec.exact else self._width * (4 * spec.dim + 64)
        kept = Candidates.memory_needed(count, self._width) * (workers + 1)
        return ScanPlan.memory_needed(self._snapshot, self._probes) + kept + count * (workers * tables + vectors)


class _Worker:
    """A thread that scans the parts a place holds, beside the host."""

    def __init__(self, scan: Scan, tier: DeviceTier, reader: Reader) -> None:
        self._scan = scan
        self._tier = tier
        self._reader = reader
        self._errors: list[BaseException] = []  # at most one; raised out of the list, it keeps no frame alive
        self._failed = False
        self.thread = threading.Thread(target=self._run, name=f"edge-scan-{tier.device.name}", daemon=True)
        self.thread.start()

    def join(self) -> None:
        self.thread.join()
        if self._errors:
            raise self._errors.pop()

    def give(self, most: int) -> list[int]:
        """Takes away at most `most` parts that are not on their way to the device yet, for the host to scan."""
        return self._reader.give(most)

    def unscanned(self) -> list[int]:
        return self._reader.unscanned if self._failed else []

    def _run(self) -> None:
        try:
            self._scan.scan(self._tier, self._reader, lambda: None)
        except DeviceLost as error:
            self._tier.fail(error)
            self._failed = True
        except BudgetExceeded:  # the device has no room for a part that was sent to it
            self._failed = True
        except BaseException as error:  # `join` raises it in the thread that runs the scan
            self._errors = [error]


_PRIORITY = -1.0
"""Vectors are read before lists: a query that is almost finished goes before lists that are not scanned yet."""


def exact_scores(vectors: Vectors, query: Vectors) -> Vectors:
    """Inner products [n] of rows [n, dim] and a query, row by row: a matrix product differs in the last bit."""
    scores: Vectors = np.einsum("ij,j->i", vectors, query)
    return scores


def codec_scores(codec: Codec, vectors: Vectors, query: Vectors) -> Vectors:
    """As `exact_scores`, but as a scan would score rows whose codes are vectors: the last bit must not tell whether a
    row is in a segment."""
    if not codec.spec.exact or not len(vectors):
        return exact_scores(vectors, query)
    scores, found = np.full(len(vectors), -np.inf, np.float32), np.full(len(vectors), -1, np.int64)
    scanner = codec.scanner()
    scanner.set_query(query)
    scanner.scan(codec.encode(vectors), np.arange(len(vectors)), scores, found)
    return scores[np.argsort(found)]


def best(scores: Vectors, ids: Ids, k: int) -> tuple[Vectors, Ids]:
    """The `k` highest scores and their ids, highest first, the smaller id first among equals."""
    if len(scores) > k:
        floor = np.partition(scores, len(scores) - k)[len(scores) - k]
        enough = scores >= floor
        scores, ids = scores[enough], ids[enough]
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]


@dataclass(frozen=True, slots=True)
class RowReading:
    """Candidates `labels` [n] of a query. `rows` [n, dim * 4] are valid once `ticket` is done."""

    query: int
    labels: Ids
    rows: Bytes
    ticket: Ticket


class Rescorer:
    """Reads candidates' vectors in one pass over ascending file positions, and scores them. For one thread."""

    def __init__(self, plan: ScanPlan, lane: Lane, dim: int) -> None:
        self._plan = plan
        self._lane = lane
        self._dim = dim
        self._sources: list[BlockFile] = []
        tables: list[RowTable] = []
        places: dict[int, int] = {}
        source_of = []
        for part in plan.parts:
            assert part.vectors is not None
            tables.append(part.vectors)
            place = places.setdefault(id(part.source), len(places))
            if place == len(self._sources):
                self._sources.append(part.source)
            source_of.append(place)
        self._source_of = np.array(source_of, np.int64)
        self._offsets = np.array([table.offset for table in tables], np.int64)

    def begin(self, query: int, labels: Ids) -> RowReading:
        parts, rows = self._plan.locate(labels)
        width = 4 * self._dim
        offsets = self._offsets[parts] + rows * width
        order = np.lexsort((offsets, self._source_of[parts]))
        groups = list(self._by_source(parts[order]))
        places = offsets[order].tolist()
        buffer = np.empty((len(labels), width), np.uint8)

        def read() -> int:
            missing = []
            for source, low, high in groups:
                low += source.read_resident(places[low:high], buffer[low:high])
                if low < high:
                    source.announce((offset, width) for offset in places[low:high])
                    missing.append((source, low, high))
            for source, low, high in missing:  # all were announced before, so the disk serves them together
                source.read_scattered(places[low:high], buffer[low:high])
            return buffer.nbytes

        ticket = self._lane.submit("vectors", read, buffer.nbytes, priority=_PRIORITY)
        return RowReading(query, labels[order], buffer, ticket)

    def finish(self, reading: RowReading, query: Vectors) -> tuple[Vectors, Ids]:
        reading.ticket.wait()
        checksums = self._plan.checksums[reading.labels]
        for label, data, checksum in zip(reading.labels.tolist(), reading.rows, checksums.tolist(), strict=True):
            if zlib.crc32(data.data) != checksum:
                parts, rows = self._plan.locate(np.array([label]))
                part = self._plan.parts[int(parts[0])]
                raise CorruptBlock(
                    f"{part.source.path}: vector {int(rows[0])} of block {part.codes} is corrupt: wrong checksum"
                )
        return exact_scores(reading.rows.view(np.float32), query), self._plan.ids[reading.labels]

    def _by_source(self, parts: npt.NDArray[np.int64]) -> Iterator[tuple[BlockFile, int, int]]:
        sources = self._source_of[parts]
        for low, high in stretches(sources):
            yield self._sources[int(sources[low])], low, high


class Results:
    """The best `k` rows of each query, best first, the smaller id first among equals. Threads may share it if no two
    work on the same query."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.lists_read = self.bytes_read = self.hits = self.nprobe = self.lists_cut = 0
        self._ids = np.full((queries, k), -1, np.int64)
        self._scores = np.full((queries, k), -np.inf, np.float32)
        self._counting = threading.Lock()

    def add(self, query: int, scores: Vectors, ids: Ids) -> None:
        """Merges rows [n] into the results of a query. Each row may be added once."""
        taken = self._ids[query] >= 0
        scores, ids = best(
            np.concatenate((self._scores[query][taken], scores)), np.concatenate((self._ids[query][taken], ids)), self.k
        )
        self._scores[query, : len(ids)], self._ids[query, : len(ids)] = scores, ids

    def count(self, nprobe: int, lists_read: int, bytes_read: int, hits: int) -> None:
        """Counts a scan: lists probed per query, the amounts that it read, and the lists that were resident."""
        with self._counting:
            self.nprobe = max(self.nprobe, nprobe)
            self.lists_read += lists_read
            self.bytes_read += bytes_read
            self.hits += hits

    def complete(self, query: int) -> bool:
        return bool(self._ids[query, -1] >= 0)

    def found(self, first: int = 0, end: int | None = None) -> Found:
        """The results of the queries from `first` to `end`, or of all, with the counts of all."""
        ids, scores = self._ids[first:end], self._scores[first:end]
        return Found(ids, scores, self.nprobe, self.lists_read, self.bytes_read, self.hits, self.lists_cut)
