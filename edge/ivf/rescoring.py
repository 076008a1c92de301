"""Exact scores of vectors in memory, and of candidates whose float32 rows are on disk; and the best rows of a search.

`Results` merges the best rows of each query from all places that were searched.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, RowTable
from edge.errors import CorruptBlock
from edge.ivf.base import Bytes, Codec, Found, Ids, Vectors
from edge.ivf.plan import ScanPlan
from edge.link import Lane, Ticket

_PRIORITY = -1.0
"""Vectors are read before lists: a query that is almost finished goes before lists that are not scanned yet."""


def exact_scores(vectors: Vectors, query: Vectors) -> Vectors:
    """Inner products [n] of rows [n, dim] with one query [dim].

    Computed row by row, because the last bit of a row in a matrix product depends on the number of rows.
    """
    scores: Vectors = np.einsum("ij,j->i", vectors, query)
    return scores


def codec_scores(codec: Codec, vectors: Vectors, query: Vectors) -> Vectors:
    """The same as `exact_scores`, as a scan of the rows would score them if their codes are the vectors themselves: the
    last bit of a score must not tell whether a row is in a segment yet."""
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
    """Candidates of one query whose vectors are being read.

    Attributes:
        query: number of the query.
        labels: [n].
        rows: [n, dim * 4], the bytes of the vectors; valid once `ticket` is done.
    """

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
        """Starts reading the vectors of `labels` [n]."""
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
        """Scores and ids [n] of a reading's candidates.

        Raises:
            CorruptBlock, StorageError: a vector cannot be read, or its checksum does not match.
        """
        reading.ticket.wait()
        checksums = self._plan.checksums(reading.labels)
        for label, data, checksum in zip(reading.labels.tolist(), reading.rows, checksums.tolist(), strict=True):
            if zlib.crc32(data.data) != checksum:
                parts, rows = self._plan.locate(np.array([label]))
                part = self._plan.parts[int(parts[0])]
                raise CorruptBlock(
                    f"{part.source.path}: vector {int(rows[0])} of block {part.codes} is corrupt: wrong checksum"
                )
        return exact_scores(reading.rows.view(np.float32), query), self._plan.ids(reading.labels)

    def _by_source(self, parts: npt.NDArray[np.int64]) -> Iterator[tuple[BlockFile, int, int]]:
        sources = self._source_of[parts]
        cuts = [0, *(np.flatnonzero(np.diff(sources)) + 1).tolist(), len(sources)]
        for low, high in pairwise(cuts):
            if high > low:
                yield self._sources[int(sources[low])], low, high


class Results:
    """The best `k` rows of each query, best first, the smaller id first among equals, padded with -1 and -inf. Threads
    may share it if no two work on the same query."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.lists_read = self.bytes_read = self.hits = self.nprobe = 0
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
        """Whether all k places of the query are taken."""
        return bool(self._ids[query, -1] >= 0)

    def found(self) -> Found:
        """The results of all queries."""
        return Found(self._ids, self._scores, self.nprobe, self.lists_read, self.bytes_read, self.hits)
