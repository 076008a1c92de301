"""`Results`: the best rows of each query of a search, merged from all places that were searched."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from edge.ivf.base import Found, Ids, Vectors
from edge.ivf.rescoring import best

Done = Callable[[int, Ids, Vectors], None]
"""Called with a query's number, its ids [k] and scores [k], as soon as they are final."""


class Results:
    """The best `k` rows of each query, best first, the smaller id first among equals, padded with -1 and -inf. Threads
    may share it if no two work on the same query."""

    def __init__(self, queries: int, k: int, done: Done | None) -> None:
        self.k = k
        self.lists_read = self.bytes_read = self.hits = self.nprobe = 0
        self._ids = np.full((queries, k), -1, np.int64)
        self._scores = np.full((queries, k), -np.inf, np.float32)
        self._done = done
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

    def finish(self, query: int) -> None:
        """Reports the query's results, which are final."""
        if self._done is not None:
            self._done(query, self._ids[query].copy(), self._scores[query].copy())

    def found(self) -> Found:
        """The results of all queries."""
        return Found(self._ids, self._scores, self.nprobe, self.lists_read, self.bytes_read, self.hits)
