"""`Searcher`: searches snapshots of one index over its tiers.

Whatever is resident, the same rows are scored and the same ones win: rows of equal score are told apart by their ids,
and where a heap cannot have kept all equals the query is scanned again with a larger one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from edge.errors import BudgetExceeded, InputError
from edge.eviction import LRU, Policy
from edge.ivf.base import Found, Ids, ListPart, Snapshot, Vectors
from edge.ivf.device import SearchPlace
from edge.ivf.grouping import group
from edge.ivf.pace import PLANNING_NBYTES, Pace, fitting_nprobe, search_bytes
from edge.ivf.plan import member
from edge.ivf.reading import Reader
from edge.ivf.rescoring import exact_scores
from edge.ivf.results import Done, Results
from edge.ivf.router import probe
from edge.ivf.scan import Scan
from edge.ivf.tiers import Tier
from edge.lookahead import Lookahead, MissCurve, Predicted, bytes_to_fetch
from edge.trace import Trace
from edge.worth import Worth

_GROUP = 16
"""Queries that are scanned together: lists they share are read once, and each of them holds heaps and tables."""

_SMOOTHING = 0.2

_ANNOUNCED = 4
"""The vectors of so many times more lists than are probed are announced: the prediction is not the query."""


class Searcher:
    """Searches the lists of one index. Thread-safe: each search works on a snapshot of its own.

    Attributes:
        host: the tier that reads cold lists.
        places: tiers of further devices, the fastest first.
    """

    def __init__(
        self,
        device: SearchPlace,
        *,
        fast: SearchPlace | None = None,
        places: Sequence[SearchPlace] = (),
        policy: Callable[[], Policy] = LRU,
        capacity: int | None = None,
        share: float = 0.5,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            device: scans whatever no other device holds; cold lists come over its link. In host memory.
            fast: a device that lookahead alone fills.
            places: devices that searches and lookahead fill, the fastest first.
            policy: made for each tier; see `edge.residency`.
            capacity: bytes of lists the host keeps at most; None for what the ledger has free.
            share: of the fast tier that stays filled with what earlier searches used (TeleRAG's cache fraction).
        """
        self.trace = trace or Trace()
        self.host = Tier(device, policy=policy(), capacity=capacity, trace=self.trace)
        self.places: list[Tier] = []
        for place in (*places, *([] if fast is None else [fast])):
            name = "fast" if place is fast else f"lists on {place.name}"
            self.places.append(
                Tier(
                    place,
                    policy=policy(),
                    share=share if place is fast else 1.0,
                    trace=self.trace,
                    name=name,
                    behind=self.host,
                    fills=place is not fast,
                )
            )
        self._budget = device.memory
        self.misses = MissCurve()
        self._worth = Worth()
        self._pace = Pace()
        self._slow_seconds = 0.0

    @property
    def fast(self) -> Tier | None:
        """The fastest further device that answers."""
        return next((tier for tier in self.places if not tier.lost), None)

    def search(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        k: int,
        *,
        nprobe: int,
        allowed: Ids | None = None,
        window: Lookahead | None = None,
        done: Done | None = None,
    ) -> Found:
        """The k rows with the largest inner products among those of each query's `nprobe` best lists.

        Args:
            queries: [q, dim].
            allowed: ids that may be returned, ascending. Probing then goes on until k are found or no list is left.
            window: a lookahead whose time is over now.
            done: told of each query as soon as it is complete, in the caller's thread.

        Raises:
            InputError: queries have the wrong shape or are not finite, or k or nprobe is below 1.
            BudgetExceeded: not even one query fits the limit.
            CorruptBlock, StorageError: a list cannot be read.
        """
        queries = _checked(queries, snapshot.dim)
        if k < 1 or nprobe < 1:
            raise InputError(f"k and nprobe must be at least 1, not {k} and {nprobe}")
        if window is not None:
            window.finish()
        results = Results(len(queries), k, done)
        started = time.perf_counter()
        needed: list[ListPart] = []
        pending = slice(None) if allowed is None else member(allowed, snapshot.pending_ids)
        waiting = deque(group(queries, _GROUP))
        while waiting:
            numbers = waiting.popleft()
            try:
                needed = self._search_group(snapshot, queries, numbers, nprobe, allowed, pending, results, window)
            except _TooLarge as refused:
                if len(numbers) == 1:
                    raise refused.cause from None
                half = len(numbers) // 2
                waiting.extendleft((numbers[half:], numbers[:half]))
        if len(queries) == 1 and allowed is None:
            scanned = sum(part.nbytes for part in needed)
            seconds = time.perf_counter() - started
            self._pace.learn(results.bytes_read, scanned, seconds, self._throughput(self.host, snapshot))
        self._budget.relieve()
        return results.found()

    def _search_group(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        numbers: npt.NDArray[np.int64],
        nprobe: int,
        allowed: Ids | None,
        pending: npt.NDArray[np.bool_] | slice,
        results: Results,
        window: Lookahead | None,
    ) -> list[ListPart]:
        """Searches the queries `numbers` [n] of a batch: their nearest lists and, under a filter, further ones until
        enough is found. Returns the parts of the nearest lists.

        Raises:
            _TooLarge: the group does not fit the memory; nothing was done for it.
        """
        nlist = snapshot.nlist
        order = probe(queries[numbers], snapshot.centroids, nprobe if allowed is None else nlist)
        low, high = 0, min(nprobe, nlist)
        active = np.arange(len(numbers))
        needed: list[ListPart] = []
        while True:
            last = allowed is None or high >= nlist
            own = numbers[active]

            def emit(query: int, scores: Vectors, ids: Ids, own: Ids = own, last: bool = last) -> None:
                number = int(own[query])
                results.add(number, scores, ids)
                if last or results.complete(number):
                    results.finish(number)

            try:
                scan = Scan(
                    snapshot, queries[own], order[active, low:high], results.k, host=self.host, places=self.places,
                    allowed=allowed, evict=low == 0,  # a filter's search for the rest of k may walk the whole index
                )  # fmt: skip
            except BudgetExceeded as error:
                if low:
                    raise
                raise _TooLarge(error) from None
            with scan:
                if not low:
                    needed = scan.plan.parts
                    if window is not None:
                        window.search_needs([part.key for part in needed])
                    for number in own.tolist():
                        rows = snapshot.pending_vectors[pending]
                        results.add(number, exact_scores(rows, queries[number]), snapshot.pending_ids[pending])
                scan.run(emit)
            results.count(scan.parts_read, scan.bytes_read, scan.hits)
            self._learn(scan.slow_seconds)
            active = active[[not results.complete(number) for number in own.tolist()]]
            if last or not len(active):
                results.nprobe = max(results.nprobe, high)
                return needed
            low, high = high, min(nlist, 2 * high)

    def fitting(self, snapshot: Snapshot, queries: Vectors, seconds: float) -> int | None:
        """The most lists that `queries` [q, dim] can probably be searched in within `seconds` together, as far as that
        depends on what is resident now; at least 1. None while it is not known how long searches take.

        Raises:
            InputError: queries have the wrong shape.
            BudgetExceeded: there is no room to go through the lists.
        """
        queries = _checked(queries, snapshot.dim)
        tiers = [*self.places, self.host]
        bandwidth = self._throughput(self.host, snapshot)
        fitting = []
        with self._budget.reserve("search", PLANNING_NBYTES * sum(map(len, snapshot.lists))):
            for query in queries:
                expected = self._pace.seconds(*search_bytes(snapshot, query, tiers), bandwidth)
                if expected is None:
                    return None
                fitting.append(fitting_nprobe(expected, seconds / len(queries)))
        return min(fitting, default=None)

    def lookahead(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        *,
        nprobe: int = 1,
        nbytes: int | None = None,
        seconds: float | None = None,
    ) -> Lookahead:
        """Starts fetching the lists that queries like `queries` [q, dim] would probe, nearest first.

        Args:
            nprobe: what a search will probably probe: where candidates are re-scored, the vectors of the nearest lists
                are announced to the system, too.
            nbytes: at most so many bytes, split equally over the queries; if not given, half of the tier's room, and
                on a device of its own at least what is free there.
            seconds: until the search is expected. Bytes are then also bounded by what the link moves in that time, or
                past it where that pays (see `edge.lookahead.bytes_to_fetch`).

        Raises:
            InputError: queries have the wrong shape.
        """
        queries = _checked(queries, snapshot.dim)
        tier = self.fast or self.host
        room = tier.residency.room
        if nbytes is None:
            # What is free on a second device nobody else asks for; the host's memory also has other uses.
            nbytes = max(room // 2, room - tier.residency.nbytes if self.fast is not None else 0)
        limit = min(room, nbytes)
        overrun = 0.0
        bandwidth = self._throughput(tier, snapshot)
        if seconds is not None and bandwidth:
            # Without a fast tier, a list that was not fetched comes over the same link: waiting wins nothing.
            slow = self._slow_seconds if self.fast is not None else 0.0
            wanted = bytes_to_fetch(bandwidth, seconds, self.misses.points(), slow)
            limit = min(limit, math.ceil(wanted))
            overrun = max(0.0, wanted / bandwidth - seconds)
        return Lookahead(
            tier.residency,
            tier.device.link,
            [_order(snapshot, query, _ANNOUNCED * nprobe, tier) for query in queries],
            nbytes=limit,
            seconds=seconds,
            overrun=overrun,
            misses=self.misses,
            worth=self._worth,
        )

    def pin(self, snapshot: Snapshot, lists: npt.NDArray[np.int64]) -> None:
        """Makes exactly `lists` [n] the pinned tier, as far as there is room: those that are not resident are read.
        Only the ledger may take them back.

        Raises:
            CorruptBlock, StorageError: a list cannot be read.
        """
        parts = [part for number in lists.tolist() for part in snapshot.lists[number]]
        reader = Reader(self.host, parts, range(len(parts)))
        try:
            for batch in reader:
                for readable in batch:
                    readable.release()
        finally:
            reader.close()
        self.host.residency.pin(part.key for part in parts)

    def release_lists(self) -> None:
        """Gives back the memory of all lists that are neither in use nor pinned."""
        for tier in (self.host, *self.places):
            tier.residency.trim(0.0)

    def close(self) -> None:
        """Gives all memory back."""
        for tier in (*self.places, self.host):
            tier.close()

    @staticmethod
    def _throughput(tier: Tier, snapshot: Snapshot) -> float:
        """Bytes per second at which parts of this index come over a tier's link; 0 if nothing ever came."""
        part = next((parts[0] for parts in snapshot.lists if parts), None)
        return tier.device.link.rate.throughput(part.nbytes if part else 1)

    def _learn(self, slow_seconds: float) -> None:
        """Remembers how long the host takes for what no faster device holds."""
        if slow_seconds:
            step = _SMOOTHING if self._slow_seconds else 1.0
            self._slow_seconds += (slow_seconds - self._slow_seconds) * step


class _TooLarge(Exception):
    """A group of queries does not fit the memory; fewer of them may."""

    def __init__(self, cause: BudgetExceeded) -> None:
        super().__init__()
        self.cause = cause


def _checked(queries: Vectors, dim: int) -> Vectors:
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InputError(f"queries must be [q, {dim}], not {list(queries.shape)}")
    if not np.isfinite(queries).all():
        raise InputError("a query is not finite")
    return queries


def _order(snapshot: Snapshot, query: Vectors, rescored: int, tier: Tier) -> Iterator[list[Predicted]]:
    """The parts of all lists, those of the nearest list first; those of the first `rescored` with their vectors."""
    for place, number in enumerate(probe(query[None], snapshot.centroids, snapshot.nlist)[0].tolist()):
        group = []
        for part in snapshot.lists[number]:
            table = part.vectors if place < rescored else None
            beside = None if table is None else (table.offset, table.rows * table.row_nbytes)
            group.append(Predicted(part.key, part.source, part.codes, part.nbytes, beside, partial(tier.read, part)))
        yield group
