"""`GroupSearch`: a few queries, their nearest lists and, under a filter, further ones until enough is found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Ids, Snapshot, Vectors
from edge.ivf.batch import Batch
from edge.ivf.plan import member
from edge.ivf.rescoring import exact_scores
from edge.ivf.results import Results
from edge.ivf.router import probe
from edge.ivf.tiers import Tier


class GroupSearch:
    """The search of one group.

    Attributes:
        slow_seconds: see `Batch`; of the last scan in which the host had something to do.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        numbers: npt.NDArray[np.int64],
        nprobe: int,
        allowed: Ids | None,
        results: Results,
        *,
        host: Tier,
        fast: Tier | None,
    ) -> None:
        """
        Args:
            queries: [q, dim]; `numbers` [q] are theirs in `results`.
            allowed: ids that may be returned, ascending.
        """
        self._host = host
        self._fast = fast
        self._snapshot = snapshot
        self._queries = queries
        self._numbers = numbers
        self._nprobe = min(nprobe, snapshot.nlist)
        self._allowed = allowed
        self._results = results
        self.slow_seconds = 0.0
        self._order = probe(queries, snapshot.centroids, self._nprobe if allowed is None else snapshot.nlist)

    def first(self) -> Batch:
        """The scan of the nearest lists.

        Raises:
            BudgetExceeded: the group is too large for the limit.
        """
        return self._batch(np.arange(len(self._queries)), 0, self._nprobe)

    def run(self, batch: Batch) -> None:
        """Runs the first scan, and those that must follow."""
        active = np.arange(len(self._queries))
        pending = _live_pending(self._snapshot, self._allowed)
        for query, number in zip(self._queries, self._numbers.tolist(), strict=True):
            self._results.add(
                number,
                exact_scores(self._snapshot.pending_vectors[pending], query),
                self._snapshot.pending_ids[pending],
            )
        high = self._nprobe
        while True:
            self._run(batch, active, last=self._allowed is None or high >= self._snapshot.nlist)
            active = active[[not self._results.complete(number) for number in self._numbers[active].tolist()]]
            if self._allowed is None or high >= self._snapshot.nlist or not len(active):
                self._results.nprobe = max(self._results.nprobe, high)
                return
            low, high = high, min(self._snapshot.nlist, 2 * high)
            batch = self._batch(active, low, high)

    def _batch(self, active: npt.NDArray[np.int64], low: int, high: int) -> Batch:
        return Batch(
            self._snapshot,
            self._queries[active],
            self._order[active, low:high],
            self._results.k,
            host=self._host,
            fast=self._fast,
            allowed=self._allowed,
            evict=low == 0,  # a filter's search for the rest of k may walk through the whole index
        )

    def _run(self, batch: Batch, active: npt.NDArray[np.int64], *, last: bool) -> None:
        def emit(query: int, scores: Vectors, ids: Ids) -> None:
            number = int(self._numbers[active[query]])
            self._results.add(number, scores, ids)
            if last or self._results.complete(number):
                self._results.finish(number)

        with batch:
            batch.run(emit)
        self.slow_seconds = batch.slow_seconds or self.slow_seconds
        self._results.lists_read += batch.parts_read
        self._results.bytes_read += batch.bytes_read
        self._results.hits += batch.hits


def _live_pending(snapshot: Snapshot, allowed: Ids | None) -> npt.NDArray[np.bool_] | slice:
    return slice(None) if allowed is None else member(allowed, snapshot.pending_ids)
