"""Several searchers as one device: a coordinator distributes each list, sends each request to all, and merges the
results (Chameleon, Jiang et al. 2025; Jiang's thesis, chapter 4)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from edge.budget import Lease, MemoryBudget
from edge.errors import CapabilityError, ConfigError, DeviceLost, EdgeError, PartLost, RangeError
from edge.ivf.base import Bytes, Ids, Vectors
from edge.ivf.device import Candidates, ListScan, Search, SearchPlace, SearchRequest, open_device
from edge.link import Lane
from edge.plugins import number
from edge.trace import Trace


@dataclass(slots=True, eq=False)
class StripeSearcher:
    """A device that searches for a coordinator, and whether it has stopped answering."""

    device: SearchPlace
    lost: bool = False


@dataclass(slots=True, eq=False)
class Stripe:
    """The `rows` of a list that a searcher holds: `first`, `first + step`, ... `buffer` is None until written."""

    searcher: StripeSearcher
    lease: Lease
    first: int
    step: int
    rows: int = 0
    buffer: Any = None
    nbytes: int = 0
    codes: Any = None

    def prepare(self, data: Bytes) -> Bytes:
        """Allocates a buffer for this stripe of a list's codes [rows, code_size], and returns the stripe's codes."""
        own: Bytes = data[self.first :: self.step]
        self.rows = len(own)
        if own.nbytes > self.nbytes:
            self.lease.resize(own.nbytes)
            self._free()
            self.buffer, self.nbytes = self.searcher.device.allocate(own.nbytes), own.nbytes
        return own

    def fill(self, own: Bytes) -> int:
        """Sends the stripe's codes [rows, code_size], and returns their number of bytes."""
        device = self.searcher.device
        device.write(self.buffer, own)
        self.codes = self.buffer
        if device.in_host_memory:  # a list in host memory is scanned as an array of its rows
            self.codes = self.buffer.reshape(-1)[: own.nbytes].reshape(own.shape)
        return own.nbytes

    def scan(self, item: ListScan, start: int) -> ListScan | None:
        """This stripe as a list to scan, with labels from `start` on; None if no row of the stripe is selected."""
        rows = item.rows
        if rows is not None:
            rows = rows[rows % self.step == self.first] // self.step
        if not self.rows or (rows is not None and not len(rows)):
            return None
        return ListScan(self.codes, start, self.rows, rows, item.queries)

    def release(self) -> None:
        self._free()
        self.lease.release()

    def _free(self) -> None:
        if self.buffer is not None:
            self.searcher.device.free(self.buffer)
            self.buffer, self.codes, self.nbytes = None, None, 0


class Stripes:
    def __init__(self, parts: list[Stripe]) -> None:
        self.parts = parts

    @property
    def lost(self) -> bool:
        """Whether a searcher with some of the rows has stopped answering."""
        return any(part.searcher.lost for part in self.parts if part.rows)


class Share:
    """One searcher's part of a request: its stripes, and the queries that probe these lists, ascending."""

    def __init__(self, searcher: StripeSearcher, request: SearchRequest) -> None:
        self.searcher = searcher
        self.scans: list[ListScan] = []
        starts, firsts, steps = [], [], []
        self._rows = 0
        for item in request.lists:
            for part in item.codes.parts:
                if part.searcher is searcher and (scan := part.scan(item, self._rows)) is not None:
                    self.scans.append(scan)
                    starts.append(self._rows)
                    firsts.append(item.first + part.first)
                    steps.append(part.step)
                    self._rows += part.rows
        self.queries = sorted({query for scan in self.scans for query in scan.queries})
        self._starts, self._firsts, self._steps = np.array(starts), np.array(firsts), np.array(steps)

    def request(self, request: SearchRequest, queries: Sequence[int], kept: int) -> SearchRequest:
        """The searcher's request for some of the queries, with queues of `kept` places."""
        wanted = set(queries)
        scans = [
            ListScan(
                scan.codes, scan.first, scan.count, scan.rows, [query for query in scan.queries if query in wanted]
            )
            for scan in self.scans
        ]
        seen = Candidates.empty(len(request.queries), kept)
        scans = [scan for scan in scans if scan.queries]
        return SearchRequest(request.codec, request.queries, scans, np.arange(self._rows), seen)

    def labels(self, own: Ids) -> Ids:
        """The request's labels [n] for this searcher's own labels [n]."""
        place = np.searchsorted(self._starts, own, side="right") - 1
        labels: Ids = self._firsts[place] + (own - self._starts[place]) * self._steps[place]
        return labels


T = TypeVar("T")

_CONFIDENCE = 0.99
"""Share of the searches in which no searcher needs a second request."""

_RARE = 1e-6
"""Smallest and, below 1, largest confidence that can be chosen."""

_MOST = 64
"""Largest number of searchers of a kind."""

_LAYOUTS = ("striped", "whole")


class SearchersDevice:
    """A device that consists of other devices, the searchers, over which the rows of each list are distributed in turn.

    Each returns a queue that is shorter than the results; if its worst row beats the worst merged one, it is asked
    again for a full queue, so results are exact. One that does not answer is removed, and the host then searches its
    lists. Counters: `searchers.asked`, `.again`, `.lost`."""

    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        of: str = "remote",
        count: int | str = 1,
        lists: str = "striped",
        confidence: float | str | None = None,
        searchers: Sequence[SearchPlace] | None = None,
        trace: Trace | None = None,
        **options: Any,
    ) -> None:
        """`of` are kinds joined by `+`, such as `remote+fpga`, `count` of each kind; `lists` is `striped`, or `whole`
        to put each list on one searcher without truncated queues; `confidence` (0.99) is the share of searches in which
        the first queues are enough. The caller closes given `searchers`; `options` are those of each, or of one after
        the other, joined by `+`: `on=cuda:0+cuda:1`."""
        self._whole = _layout(lists)
        self._confidence = (
            _CONFIDENCE if confidence is None else number("searchers", "confidence", confidence, _RARE, 1 - _RARE)
        )
        if confidence is not None and self._whole:
            raise ConfigError("queues of searchers may be short only where every list is dealt evenly over them")
        self._trace = trace or Trace()
        self._own: list[SearchPlace] = []
        try:
            if searchers is None:
                given = {name: text.split("+") if isinstance(text, str) else [text] for name, text in options.items()}
                kinds = of.split("+") * int(number("searchers", "count", count, 1, _MOST, whole=True))
                for place, kind in enumerate(kinds):
                    own = {name: values[place % len(values)] for name, values in given.items()}
                    self._own.append(_opened(kind.strip(), memory, trace, own))
            elif options:
                raise ConfigError(f"searchers that are open take no options, such as {next(iter(options))}")
            found = self._own if searchers is None else list(searchers)
            _check(found, memory)
        except BaseException:
            self._close_searchers()
            raise
        self._searchers = [StripeSearcher(device) for device in found]
        self.name = f"{len(found)} searchers"
        self.memory = MemoryBudget(sum(device.memory.limit for device in found), part=True)
        self.link = Lane("searchers link", trace=trace)
        self._pool = ThreadPoolExecutor(len(found), thread_name_prefix="edge-searcher")

    @property
    def answering(self) -> list[StripeSearcher]:
        alive = [searcher for searcher in self._searchers if not searcher.lost]
        if not alive:
            raise DeviceLost(f"all {self.name} are lost; what they held is searched elsewhere")
        return alive

    def allocate(self, nbytes: int) -> Stripes:
        """Leases memory for a list at every searcher, or for a whole list at the one with most."""
        chosen = self.answering
        if self._whole:
            chosen = [max(chosen, key=lambda searcher: searcher.device.memory.free)]
        parts: list[Stripe] = []
        try:
            for number, searcher in enumerate(chosen):
                lease = searcher.device.memory.reserve("stripes of lists", -(-nbytes // len(chosen)))
                parts.append(Stripe(searcher, lease, number, len(chosen)))
        except EdgeError:
            for part in parts:
                part.release()
            raise
        return Stripes(parts)

    def write(self, buffer: Stripes, data: Bytes) -> None:
        """Distributes the rows of codes [rows, code_size] over the searchers, through all their links in parallel."""
        parts = buffer.parts
        codes = self._all([(part.searcher, _settled(functools.partial(part.prepare, data))) for part in parts])
        tickets = [
            (part.searcher, part.searcher.device.link.submit("stripe", functools.partial(part.fill, own), own.nbytes))
            for part, own in zip(parts, codes, strict=True)
            if len(own)
        ]
        self._all([(searcher, _settled(ticket.wait)) for searcher, ticket in tickets])

    def free(self, buffer: Stripes) -> None:
        for part in buffer.parts:
            part.release()

    def search(self, request: SearchRequest) -> Candidates:
        if not request.lists:
            return request.seen
        if any(item.codes.lost for item in request.lists):
            raise PartLost(f"some of the {self.name} are lost, and with them rows of the lists")
        count, width = request.seen.scores.shape
        answering = self.answering
        kept = width if self._whole else queue_length(width, len(answering), confidence=self._confidence)
        shares = [share for searcher in answering if (share := Share(searcher, request)).scans]
        found = self._ask([(share, share.queries, kept) for share in shares], request)
        cuts = [_cut(request.seen, found, query) for query in range(count)]
        short = [
            [query for query in share.queries if own.floor(query) > cuts[query]]
            for share, own in zip(shares, found, strict=True)
        ]
        again = [(share, queries, width) for share, queries in zip(shares, short, strict=True) if queries]
        full = self._ask(again, request)  # before any result is used, because a searcher may be lost now
        for share, own, queries in zip(shares, found, short, strict=True):
            for query in set(share.queries).difference(queries):
                _offer(request.seen, share, own, query)
        for (share, queries, _), own in zip(again, full, strict=True):
            for query in queries:
                _offer(request.seen, share, own, query)
        self._trace.count("searchers.asked", sum(len(share.queries) for share in shares))
        self._trace.count("searchers.again", sum(map(len, short)))
        return request.seen

    def close(self) -> None:
        self._pool.shutdown()
        self.link.close()
        self._close_searchers()

    def _ask(self, asked: Sequence[tuple[Share, Sequence[int], int]], request: SearchRequest) -> list[Candidates]:
        """The best rows of each share for its queries, in queues of the given length. Searchers work in parallel."""

        def one(share: Share, queries: Sequence[int], kept: int) -> Candidates | _Failure:
            return _settled(lambda: share.searcher.device.search(share.request(request, queries, kept)))

        futures = [self._pool.submit(one, *each) for each in asked]
        searchers = [share.searcher for share, _, _ in asked]
        return self._all([(each, future.result()) for each, future in zip(searchers, futures, strict=True)])

    def _all(self, settled: Sequence[tuple[StripeSearcher, T | _Failure]]) -> list[T]:
        failed = ""
        for searcher, answer in settled:
            if isinstance(answer, _Failure):
                failed = answer.reason
                if not searcher.lost:
                    searcher.lost = True
                    self._trace.count("searchers.lost")
        if failed and all(searcher.lost for searcher in self._searchers):
            raise DeviceLost(f"all {self.name} are lost; the last: {failed}")
        if failed:
            raise PartLost(f"one of the {self.name} is lost: {failed}")
        return [answer for _, answer in settled if not isinstance(answer, _Failure)]

    def _close_searchers(self) -> None:
        while self._own:
            self._own.pop().close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a searcher did not answer, without the traceback, which would keep buffers in memory."""

    reason: str


def _settled(answer: Callable[[], T]) -> T | _Failure:
    try:
        return answer()
    except DeviceLost as error:
        return _Failure(str(error))


def _offer(seen: Candidates, share: Share, found: Candidates, query: int) -> None:
    taken = found.labels[query] >= 0
    if taken.any():
        seen.offer(query, found.scores[query][taken], share.labels(found.labels[query][taken]))


def _cut(seen: Candidates, found: Sequence[Candidates], query: int) -> float:
    """The score of the worst row in the merged results, below which no row counts; -inf while there are fewer rows."""
    width = seen.scores.shape[1]
    every: list[Vectors] = [each.scores[query][each.labels[query] >= 0] for each in (seen, *found)]
    scores = np.concatenate(every)
    return float(np.partition(scores, len(scores) - width)[len(scores) - width]) if len(scores) >= width else -math.inf


@functools.lru_cache(maxsize=256)
def queue_length(results: int, queues: int, *, confidence: float = 0.99) -> int:
    """The shortest queues at which a share `confidence` of all queries loses none of the best `results` (union bound;
    Jiang's thesis, section 4.3), if each list is spread evenly."""
    if results < 1 or queues < 1 or not 0 < confidence < 1:
        raise RangeError(f"{results} results, {queues} queues and a confidence of {confidence} have no queue length")
    more = 0.0
    for count in range(results, 1, -1):  # the smallest probabilities are added first, so the sum is exact
        more += share_of_queue(results, queues, count)
        if queues * more > 1 - confidence:
            return count
    return 1


def share_of_queue(results: int, queues: int, count: int) -> float:
    """Probability that a given queue gets exactly `count` of the best `results`."""
    if queues == 1:
        return float(count == results)
    ways = math.lgamma(results + 1) - math.lgamma(count + 1) - math.lgamma(results - count + 1)
    return math.exp(ways - count * math.log(queues) + (results - count) * math.log1p(-1 / queues))


def _opened(kind: str, memory: MemoryBudget, trace: Trace | None, options: dict[str, Any]) -> SearchPlace:
    if kind == "cpu":  # the host's processor, with a cap on its part of the host's memory
        kind, options = "limited", {"bandwidth": math.inf} | options
    if kind == "searchers":
        raise ConfigError("searchers are devices that search themselves, and no searchers")
    device = open_device(kind, memory, trace=trace, **options)
    if not isinstance(device, Search):
        device.close()
        raise CapabilityError(f"device {kind} searches no lists")
    return device


def _check(searchers: Sequence[SearchPlace], memory: MemoryBudget) -> None:
    if not searchers:
        raise ConfigError("there is at least one searcher")
    for device in searchers:
        if device.memory is memory:
            raise CapabilityError(
                f"device {device.name} has no memory of its own, so it cannot be one of the searchers"
            )


def _layout(lists: str) -> bool:
    if lists not in _LAYOUTS:
        raise ConfigError(f"lists of searchers are {' or '.join(_LAYOUTS)}, not {lists!r}")
    return lists == "whole"
