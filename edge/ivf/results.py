"""`Results`: the best rows of each query of a search, merged from wherever they were found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge.ivf.base import Found, Ids, Vectors
from edge.ivf.rescoring import best

Done = Callable[[int, Ids, Vectors], None]
"""Called with a query's number, its ids [k] and scores [k], as soon as they are final."""


class Results:
    """Padded with -1 and -inf, best first, the smaller id first among equals."""

    def __init__(self, queries: int, k: int, done: Done | None) -> None:
        self.k = k
        self.lists_read = self.bytes_read = self.hits = self.nprobe = 0
        self._ids = np.full((queries, k), -1, np.int64)
        self._scores = np.full((queries, k), -np.inf, np.float32)
        self._done = done

    def add(self, query: int, scores: Vectors, ids: Ids) -> None:
        """Merges rows [n] that were not added before."""
        taken = self._ids[query] >= 0
        scores, ids = best(
            np.concatenate((self._scores[query][taken], scores)), np.concatenate((self._ids[query][taken], ids)), self.k
        )
        self._scores[query, : len(ids)], self._ids[query, : len(ids)] = scores, ids

    def count(self, lists_read: int, bytes_read: int, hits: int) -> None:
        """Counts what a scan had to read, and what was there."""
        self.lists_read += lists_read
        self.bytes_read += bytes_read
        self.hits += hits

    def complete(self, query: int) -> bool:
        """All k places are taken."""
        return bool(self._ids[query, -1] >= 0)

    def finish(self, query: int) -> None:
        """The query's results are final."""
        if self._done is not None:
            self._done(query, self._ids[query].copy(), self._scores[query].copy())

    def found(self) -> Found:
        """Everything, as callers get it."""
        return Found(self._ids, self._scores, self.nprobe, self.lists_read, self.bytes_read, self.hits)
