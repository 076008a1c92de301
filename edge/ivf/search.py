"""`IndexSearcher`: searches snapshots of one index over its tiers. Results do not depend on which lists are resident.

Searches that must read lists from a slow place, or that come while a further device searches, become one batch of
similar queries (TeleRAG, section 4.2), which reads each list once. A search leaves it when its own last list is scanned
(VectorLiteRAG, section IV-B2)."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge.blocks import distinct
from edge.cache.cached_block import DecayedHotness, Fetch, Policy, charge_of
from edge.errors import BudgetExceeded, EdgeError, InputError
from edge.ivf.base import Found, Ids, ListPart, Snapshot, Vectors
from edge.ivf.device import Joins, SearchPlace
from edge.ivf.plan import (
    PLANNING_NBYTES,
    SearchCost,
    checked_queries,
    fitting_nprobe,
    group,
    lists_in_time,
    member,
    probe,
    search_bytes,
)
from edge.ivf.reading import DeviceTier, read_order
from edge.ivf.scan import Results, Scan, codec_scores
from edge.scheduling.waiting_line import Taken, WaitingLine
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.cache.lookahead import DemandShadow, Lookahead, MissCurve, Predicted
    from edge.ivf.placement import Placement

Numbers = npt.NDArray[np.int64]
"""Numbers [n] of queries of a batch."""

_GROUP = 16
"""Queries that are scanned together. Lists they share are read once, but each query needs heaps and tables."""

_SMOOTHING = 0.2

_NEXT = 0.5
"""Priority of the lists of the search that is next in line: after those that are needed now."""

_ANNOUNCED = 4
"""Ratio of the lists whose vectors are announced to the lists probed, since the predicted query is not exact."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A search that waits for the link. `alone`: it shares no batch, because one that it shared has failed."""

    snapshot: Snapshot
    queries: Vectors
    k: int
    nprobe: int
    probes: Numbers
    asked: float
    found: Found | None = None
    alone: bool = False

    def joins(self, other: _Waiting) -> bool:
        alike = self.snapshot is other.snapshot and (self.k, self.nprobe) == (other.k, other.nprobe)
        return alike and not self.alone and not other.alone


class IndexSearcher:
    """Searches the lists of one index. Thread-safe. `host` is the tier that reads cold lists, `place` a further one."""

    def __init__(
        self,
        device: SearchPlace,
        *,
        place: SearchPlace | None = None,
        policy: Callable[[], Policy] = DecayedHotness,
        capacity: int | None = None,
        within: float = 0.0,
        trace: Trace | None = None,
    ) -> None:
        """`capacity`: bytes of lists on the host at most; `within`: a search's deadline in seconds, 0 for none. For it
        lists are held on `place`, if there is one."""
        self.trace = trace or Trace()
        self.host = DeviceTier(device, policy=policy(), capacity=capacity, trace=self.trace)
        self.place: DeviceTier | None = None
        if place is not None:
            name = f"lists on {place.name}"
            self.place = DeviceTier(place, policy=policy(), trace=self.trace, name=name, behind=self.host)
        self._budget = device.memory
        self._shadows: dict[DeviceTier, DemandShadow] = {}
        self._pace = SearchCost()
        self._slow_seconds = 0.0
        self._line: WaitingLine[_Waiting] = WaitingLine(self._search_waiting)
        self._searches = 0  # at this moment
        self._counting = threading.Lock()
        self.placement: Placement | None = None
        if within:
            from edge.ivf.placement import Placement

            self.placement = Placement(self.place or self.host, within, self._batch_seconds, _GROUP, self.trace)

    @cached_property
    def misses(self) -> MissCurve:
        """Learns how good predictions are. A search without a prediction does without its module."""
        from edge.cache.lookahead import MissCurve

        return MissCurve()

    @property
    def fast(self) -> DeviceTier | None:
        """The further device, unless it is lost."""
        return None if self.place is None or self.place.lost else self.place

    @property
    def tiers(self) -> list[DeviceTier]:
        return [self.host] if self.place is None else [self.place, self.host]

    def search(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        k: int,
        *,
        nprobe: int,
        allowed: Ids | None = None,
        window: Lookahead | None = None,
    ) -> Found:
        """The k rows with the largest inner products among each query's `nprobe` best lists; with a deadline, among
        those that can come in time (see `lists_in_time`).

        Under `allowed` (ascending ids) probing goes on until k are found. A `window` ends now."""
        queries = checked_queries(queries, snapshot.dim)
        if k < 1 or nprobe < 1:
            raise InputError(f"k and nprobe must be at least 1, not {k} and {nprobe}")
        if window is not None:
            window.finish()
        asked = time.perf_counter()
        probes = None if allowed is not None else probe(queries, snapshot.centroids, nprobe)
        with self._counting:
            others, self._searches = self._searches, self._searches + 1
        try:
            shared = probes if others and window is None else None
            if shared is not None and self._gains(snapshot, shared):
                waiting = _Waiting(snapshot, queries, k, nprobe, shared, asked)
                next_in_line = self.fast is None and len(self._line) > 0 and not self._line.waiting
                with self._fetching(waiting) if next_in_line else nullcontext():
                    self._line.run(waiting)
                assert waiting.found is not None
                found = waiting.found
            else:
                found = self._search(snapshot, queries, k, nprobe, allowed, probes, window, asked)
        finally:
            with self._counting:
                self._searches -= 1
        if self.placement is not None and probes is not None:
            self.placement.note(snapshot, probes, asked, time.perf_counter() - asked)
        return found

    def _search(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        k: int,
        nprobe: int,
        allowed: Ids | None,
        probes: Numbers | None,
        window: Lookahead | None,
        asked: float,
    ) -> Found:
        results = Results(len(queries), k)
        started = time.perf_counter()
        scanned = 0
        pending = slice(None) if allowed is None else member(allowed, snapshot.pending_ids)

        waiting = deque(group(queries, _GROUP))
        while waiting:
            some = waiting.popleft()
            try:
                in_time = nprobe if probes is None else self._in_time(snapshot, probes[some], asked, results)
                scanned += self._search_group(
                    snapshot, queries, some, in_time, allowed, probes, pending, results, window
                )
            except _TooLarge as refused:
                if len(some) == 1:
                    raise refused.cause from None
                half = len(some) // 2
                waiting.extendleft((some[half:], some[:half]))
        if len(queries) == 1 and allowed is None:
            self._learn_pace(snapshot, results, scanned, time.perf_counter() - started)
        self._budget.relieve()
        return results.found()

    def _in_time(self, snapshot: Snapshot, probes: Numbers, asked: float, results: Results) -> int:
        """The number of each query's lists `probes` [q, nprobe] that a search is given which was asked for at this
        time. It may raise `_TooLarge`."""
        nprobe = int(probes.shape[1])
        if self.placement is None:
            return nprobe
        try:
            lease = self._budget.reserve(
                "search", PLANNING_NBYTES * sum(len(snapshot.lists[number]) for number in distinct(probes).tolist())
            )
        except BudgetExceeded as error:
            raise _TooLarge(error) from None
        with lease:
            slack = asked + self.placement.within - time.perf_counter()
            kept = lists_in_time(snapshot, probes, self.tiers, self._batch_seconds(snapshot), slack)
        results.lists_cut = max(results.lists_cut, nprobe - kept)
        return kept

    def _gains(self, snapshot: Snapshot, probes: Numbers) -> bool:
        """Whether a search gains from a batch: the further device holds most of its lists, and starts once for all; or
        it has to wait for the link, since it would read for a longer time than it scans."""
        lists = (snapshot.lists[number] for number in distinct(probes).tolist())
        parts: dict[Hashable, int] = {part.key: part.nbytes for own in lists for part in own}
        if self.fast is not None:
            absent = self.fast.residency.absent(parts)
            return 2 * sum(parts[key] for key in absent) < sum(parts.values())
        missing = sum(parts[key] for key in self.host.residency.absent(parts))
        bandwidth = self._throughput(self.host, snapshot)
        return missing > 0 and bandwidth * self.host.pace * sum(parts.values()) < missing

    @contextmanager
    def _fetching(self, waiting: _Waiting) -> Iterator[None]:
        """Fetches the lists of the search that is next in line, while the link does nothing for those before it."""
        residency, link = self.host.residency, self.host.device.link

        def fetch(part: ListPart) -> Fetch:
            return lambda buffer: link.fetch(part.source, part.codes, buffer.data, priority=_NEXT)

        lists = (waiting.snapshot.lists[number] for number in distinct(waiting.probes).tolist())
        parts = sorted((part for own in lists for part in own), key=read_order)
        residency.prefetch(waiting, [(part.key, part.nbytes, fetch(part)) for part in parts], residency.room)
        try:
            yield
        finally:
            keys = [part.key for part in parts]
            residency.withdraw(waiting, keys)
            residency.unguard(waiting, keys)

    def _search_waiting(self, taken: Taken[_Waiting]) -> None:
        """Searches the first that waits, and as many like it, with the nearest queries, as fit into a group."""
        first, *others = iter(taken.next, None)
        alike = [first, *(other for other in others if other.joins(first))]
        batch: list[_Waiting] = []
        size = 0
        for number in group(np.stack([task.queries.mean(axis=0) for task in alike]), len(alike))[0].tolist():
            if not batch or size + len(alike[number].queries) <= _GROUP:
                batch.append(alike[number])
                size += len(alike[number].queries)
        for other in others:
            if other not in batch:
                taken.put_back(other)
        try:
            self._search_batch(batch, taken)
        except (_TooLarge, EdgeError):
            if len(batch) > 1:  # a list of another search may be the cause
                for task in batch:
                    if task.found is None:
                        task.alone = True
                        taken.put_back(task)
                return
            first.found = self._search(
                first.snapshot, first.queries, first.k, first.nprobe, None, first.probes, None, first.asked
            )

    def _search_batch(self, batch: Sequence[_Waiting], taken: Taken[_Waiting]) -> None:
        """Searches a batch. If a list cannot be read, the searches that are done have their results."""
        first = batch[0]
        ends = np.cumsum([len(task.queries) for task in batch]).tolist()
        left = [len(task.queries) for task in batch]
        results = Results(ends[-1], first.k)
        started = time.perf_counter()

        def ended(query: int) -> None:
            number = bisect_right(ends, query)
            left[number] -= 1
            if not left[number] and any(left):
                task = batch[number]
                task.found = replace(
                    results.found(ends[number] - len(task.queries), ends[number]), lists_read=0, bytes_read=0, hits=0
                )
                taken.done(task)

        probes = np.concatenate([task.probes for task in batch])
        in_time = self._in_time(first.snapshot, probes, min(task.asked for task in batch), results)
        scanned = self._search_group(
            first.snapshot, np.concatenate([task.queries for task in batch]), np.arange(ends[-1]), in_time, None,
            probes, slice(None), results, None, ended,
        )  # fmt: skip
        self._learn_pace(first.snapshot, results, scanned, time.perf_counter() - started)
        for task, end in zip(batch, ends, strict=True):
            if task.found is None:
                task.found = results.found(end - len(task.queries), end)
        self._budget.relieve()

    def _search_group(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        numbers: Numbers,
        nprobe: int,
        allowed: Ids | None,
        probes: Numbers | None,
        pending: npt.NDArray[np.bool_] | slice,
        results: Results,
        window: Lookahead | None,
        ended: Callable[[int], object] = lambda _: None,
    ) -> int:
        """Searches the queries `numbers` [n] of a batch; returns the bytes of their nearest
        lists, each counted for each query. `ended` gets the number of a query whose first lists are scanned. After
        `_TooLarge` nothing was done."""
        nlist = snapshot.nlist
        order = probe(queries[numbers], snapshot.centroids, nlist) if probes is None else probes[numbers]
        low, high = 0, min(nprobe, nlist)
        active = np.arange(len(numbers))
        scanned = 0
        while True:
            last = allowed is None or high >= nlist
            own = numbers[active]

            def emit(query: int, scores: Vectors, ids: Ids, own: Ids = own) -> None:
                results.add(int(own[query]), scores, ids)
                ended(int(own[query]))

            probed = order[active, low:high]
            try:
                scan = Scan(
                    snapshot, queries[own], probed, results.k, host=self.host, place=self.fast,
                    allowed=allowed, evict=low == 0,  # a filter's search for the rest of k may walk the whole index
                )  # fmt: skip
            except BudgetExceeded as error:
                if low:
                    raise
                raise _TooLarge(error) from None
            with scan:
                if not low:
                    needed = scan.plan.parts
                    scanned = sum(part.nbytes * len(by) for part, by in zip(needed, scan.plan.queries, strict=True))
                    unread = self._would_read(needed, self.fast or self.host)
                    if window is not None:
                        window.search_needs([part.key for part in needed], unread)
                if not low or snapshot.pending_lists is not None:
                    self._score_pending(snapshot, queries, own, probed, pending, results)
                scan.run(emit)
            results.count(high, scan.parts_read, scan.bytes_read, scan.hits)
            self._learn(scan.slow_seconds)
            active = active[[not results.complete(number) for number in own.tolist()]]
            if last or not len(active):
                return scanned
            low, high = high, min(nlist, 2 * high)

    @staticmethod
    def _score_pending(
        snapshot: Snapshot, queries: Vectors, numbers: Numbers, probed: Numbers,
        pending: npt.NDArray[np.bool_] | slice, results: Results,
    ) -> None:  # fmt: skip
        ids, vectors, lists = snapshot.pending_ids[pending], snapshot.pending_vectors[pending], snapshot.pending_lists
        for number, own in zip(numbers.tolist(), probed, strict=True):
            near = slice(None) if lists is None else member(np.sort(own), lists[pending])
            results.add(number, codec_scores(snapshot.codec, vectors[near], queries[number]), ids[near])

    def fitting(self, snapshot: Snapshot, queries: Vectors, seconds: float) -> int | None:
        """The largest number of lists in which `queries` can probably be searched within `seconds` together. None
        before the first search was timed."""
        queries = checked_queries(queries, snapshot.dim)
        bandwidth = self._throughput(self.host, snapshot)
        fitting = []
        with self._budget.reserve("search", PLANNING_NBYTES * sum(map(len, snapshot.lists))):
            for query in queries:
                expected = self._pace.seconds(*search_bytes(snapshot, query, self.tiers), bandwidth)
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
        depth: int | None = None,
        lost: Callable[[float], object] | None = None,
    ) -> Lookahead:
        """Starts fetching the lists that queries like `queries` [q, dim] would probe, nearest first.

        `nbytes` is split equally over the queries; by default it is half of the tier's room. With `seconds` until the
        search the bytes are bounded by what the link transfers (see `edge.cache.lookahead.bytes_to_fetch`)."""
        from edge.cache.lookahead import DemandShadow, Lookahead, bytes_to_fetch

        queries = checked_queries(queries, snapshot.dim)
        tier = self.fast or self.host
        room = tier.residency.room
        if nbytes is None:
            # Nothing else competes for the free memory of a second device; the host's memory also has other uses.
            nbytes = max(room // 2, room - tier.residency.nbytes if self.fast is not None else 0)
        limit = min(room, nbytes)
        overrun = 0.0
        bandwidth = self._throughput(tier, snapshot)
        if seconds is not None and bandwidth:
            # Without a fast tier, a list that was not fetched comes over the same link, so waiting gains nothing.
            slow = self._slow_seconds if self.fast is not None else 0.0
            wanted = bytes_to_fetch(bandwidth, seconds, self.misses.points(), slow)
            limit = min(limit, math.ceil(wanted))
            overrun = max(0.0, wanted / bandwidth - seconds)
        orders = [_order(snapshot, query, _ANNOUNCED * nprobe, tier) for query in queries]
        spared: list[Hashable] = []
        if depth is not None:
            bounded = [list(islice(order, depth)) for order in orders]
            spared = [predicted.key for order in bounded for group in order for predicted in group]
            orders = [iter(order) for order in bounded]
        if tier not in self._shadows:
            self._shadows[tier] = DemandShadow(*tier.residency.fork())
        return Lookahead(
            tier.residency,
            tier.device.link,
            orders,
            nbytes=limit,
            seconds=seconds,
            overrun=overrun,
            misses=self.misses,
            spared=spared,
            displacement=self._shadows[tier].displacement(lost),
            joined=tier.device.most if isinstance(tier.device, Joins) else 0,
        )

    def picture(self) -> dict[str, Any]:
        """The parts in the host's memory, their bytes, those held for a deadline, and the waiting searches."""
        placed, residency = self.placement, self.host.residency
        return {
            "parts": len(residency), "nbytes": residency.nbytes, "waiting": len(self._line),
            "held": 0 if placed is None else placed.nbytes, "within": 0.0 if placed is None else placed.within,
        }  # fmt: skip

    def release_lists(self) -> None:
        for tier in self.tiers:
            tier.residency.trim(0.0)

    def close(self) -> None:
        if self.placement is not None:
            self.placement.close()
        for tier in self.tiers:
            tier.close()

    def _would_read(self, needed: Sequence[ListPart], tier: DeviceTier) -> set[Hashable]:
        """Keys of the parts that a search would read if no lookahead had ever fetched any. Call it when the search has
        reserved its working memory."""
        if (shadow := self._shadows.get(tier)) is None:
            return set()
        blocks: dict[Hashable, int] = {part.key: charge_of(part.nbytes) for part in sorted(needed, key=read_order)}
        return shadow.search(
            blocks, tier.residency.usable, absent=tier.residency.absent(blocks),
            seconds=tier.device.link.rate.seconds,
        )  # fmt: skip

    @staticmethod
    def _throughput(tier: DeviceTier, snapshot: Snapshot) -> float:
        """Bytes per second at which parts of this index come over a tier's link; 0 before the first transfer."""
        part = next((parts[0] for parts in snapshot.lists if parts), None)
        return tier.device.link.rate.throughput(part.nbytes if part else 1)

    def _learn_pace(self, snapshot: Snapshot, results: Results, scanned: int, seconds: float) -> None:
        self._pace.learn(results.bytes_read, scanned, seconds, self._throughput(self.fast or self.host, snapshot))

    def _batch_seconds(self, snapshot: Snapshot) -> Callable[[int, int], float]:
        return partial(self._pace.expected, bandwidth=self._throughput(self.fast or self.host, snapshot))

    def _learn(self, slow_seconds: float) -> None:
        """Learns the seconds that the host takes for the parts that no faster device holds."""
        if slow_seconds:
            step = _SMOOTHING if self._slow_seconds else 1.0
            self._slow_seconds += (slow_seconds - self._slow_seconds) * step


class _TooLarge(Exception):
    """A group of queries does not fit the memory; a smaller group may."""

    def __init__(self, cause: BudgetExceeded) -> None:
        super().__init__()
        self.cause = cause


def _order(snapshot: Snapshot, query: Vectors, rescored: int, tier: DeviceTier) -> Iterator[list[Predicted]]:
    """The parts of all lists, nearest list first. Parts of the first `rescored` lists include their vectors."""
    from edge.cache.lookahead import Predicted

    for place, number in enumerate(probe(query[None], snapshot.centroids, snapshot.nlist)[0].tolist()):
        group = []
        for part in snapshot.lists[number]:
            table = part.vectors if place < rescored else None
            beside = None if table is None else (table.offset, table.rows * table.row_nbytes)
            group.append(
                Predicted(
                    part.key, part.source, part.codes, part.nbytes, beside, partial(tier.filling, part, kind="ahead")
                )
            )
        yield group
