"""`Dispatcher`: counts, query by query, what is still to be scanned; a query leaves as soon as its last part is done
(VectorLiteRAG, section IV-B2)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge.ivf.base import Ids, Vectors


@dataclass(frozen=True, slots=True)
class Heaps:
    """The best rows one worker has seen: for each query a min-heap of `scores` and `labels` [q, width], as scanners
    keep it."""

    scores: Vectors
    labels: Ids


@dataclass(frozen=True, slots=True)
class Candidates:
    """What all workers kept for one query: `scores` and `labels` [n], in no order.

    Attributes:
        floor: rows that score at most this may be missing (a full heap lets the first of equals stay).
    """

    scores: Vectors
    labels: Ids
    floor: float


class Dispatcher:
    """Counts the parts of a batch of queries. Thread-safe.

    Attributes:
        finished: queries whose last part has been scanned, in that order.
    """

    def __init__(self, expected: Sequence[int], width: int) -> None:
        """
        Args:
            expected: parts to scan for each query; queries with none are finished at once.
            width: rows kept for each query.
        """
        self.width = width
        self.finished: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._left = list(expected)
        self._heaps: list[Heaps] = []
        self._lock = threading.Lock()
        for query, parts in enumerate(expected):
            if not parts:
                self.finished.put(query)

    def heaps(self) -> Heaps:
        """Empty heaps of one more worker."""
        shape = (len(self._left), self.width)
        heaps = Heaps(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))
        with self._lock:
            self._heaps.append(heaps)
        return heaps

    def scanned(self, queries: Sequence[int]) -> None:
        """One part has been scanned for all of `queries` (numbers, unique)."""
        with self._lock:
            for query in queries:
                self._left[query] -= 1
                if not self._left[query]:
                    self.finished.put(query)

    def collect(self, query: int) -> Candidates:
        """What was found for a finished query."""
        with self._lock:
            heaps = list(self._heaps)
        scores = np.concatenate([np.empty(0, np.float32), *(heap.scores[query] for heap in heaps)])
        labels = np.concatenate([np.empty(0, np.int64), *(heap.labels[query] for heap in heaps)])
        full = [float(heap.scores[query].min()) for heap in heaps if heap.labels[query].min() >= 0]
        taken = labels >= 0
        return Candidates(scores[taken], labels[taken], max(full, default=-np.inf))

    @staticmethod
    def heap_nbytes(queries: int, width: int) -> int:
        """Bytes of one worker's heaps."""
        return queries * width * 12
