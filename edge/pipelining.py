"""Retrieval during generation (PipeRAG): a query a little stale, asked early, searched as widely as time allows.

Every `interval` tokens the text so far is a query whose result is used one interval later. The search may take as long
as the next interval takes to generate: nprobe is the largest that a measured table says fits.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from edge.curve import Curve
from edge.errors import InputError
from edge.trace import Trace

Query = TypeVar("Query")
Result = TypeVar("Result")
Token = TypeVar("Token")

_SMOOTHING = 0.2
_TOLERANCE = 1.1


def measure_retrieval(
    search: Callable[[int], object],
    nlist: int,
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """Retrieval time by nprobe: 1, 2, 4, ... and nlist, medians of `repeats`.

    Args:
        search: searches so many lists, with a query of its choice.
    """
    points = []
    search(1)  # the first search also warms up what all share
    for nprobe in sorted({*(1 << i for i in range(nlist.bit_length())), nlist}):
        times = []
        for _ in range(repeats):
            started = clock()
            search(nprobe)
            times.append(clock() - started)
        points.append((nprobe, statistics.median(times)))
    return Curve.measured(points)


@dataclass(frozen=True, slots=True)
class Probes:
    """How widely to search.

    Attributes:
        nprobe: lists to search.
        predicted: seconds that takes.
        slack: seconds there are.
    """

    nprobe: int
    predicted: float
    slack: float

    @property
    def hidden(self) -> bool:
        """Whether the search ends in time; False only where a single list takes longer than there is."""
        return self.predicted <= self.slack


def choose_nprobe(retrieval: Curve, slack: float, nlist: int) -> Probes:
    """The largest nprobe in [1, nlist] whose predicted time is within `slack` seconds; 1 if none is (PipeRAG, S3)."""
    if nlist < 1:
        raise InputError(f"an index has at least one list, not {nlist}")
    nprobe = max(1, bisect.bisect_right(range(1, nlist + 1), slack, key=retrieval))  # the curve never falls
    return Probes(nprobe, retrieval(nprobe), slack)


def hidden_bytes(bandwidth: float, slack: float) -> int:
    """Bytes that a link of `bandwidth` bytes per second moves within `slack` seconds: the same rule for lookahead."""
    return max(0, int(bandwidth * slack))


def generation_seconds(per_token: Curve, length: int, count: int) -> float:
    """Predicted seconds to generate `count` tokens after `length`; `per_token` is measured by sequence length."""
    return sum(per_token(position) for position in range(length, length + count))


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of generated text and the query whose result it uses.

    Attributes:
        start, end: the tokens generated.
        query: the tokens asked with, None in the first interval, which has no result to use.
        stale: tokens generated between query and use; the result is shifted by as many.
    """

    start: int
    end: int
    query: tuple[int, int] | None
    stale: int


def schedule(total: int, interval: int, *, window: int = 64) -> Iterator[Interval]:
    """The intervals of `total` tokens (PipeRAG, S1 and S2).

    The first retrieval cannot be asked early: its query is fresh, and the second interval waits for it. From the third
    on, a query is asked when the interval before begins, and is stale by that interval.

    Args:
        interval: tokens between retrievals.
        window: tokens of a query at most; independent of the interval.

    Raises:
        InputError: interval or window is not positive.
    """
    if interval < 1 or window < 1:
        raise InputError(f"interval and window are numbers of tokens of at least 1, not {interval} and {window}")
    for number, start in enumerate(range(0, total, interval)):
        stale = 0 if number < 2 else interval
        asked = start - stale
        query = (max(0, asked - window), asked) if number else None
        yield Interval(start, min(total, start + interval), query, stale)


def shift(retrieved: Sequence[Token], following: Sequence[Token], stale: int) -> list[Token]:
    """What a retrieved passage would be, had the query been `stale` tokens later: its first tokens are dropped, and it
    is continued from the text that follows it to its old length, as far as there is any."""
    return [*retrieved, *following][stale : stale + len(retrieved)]


def modelled_seconds(generation: Sequence[float], retrieval: Sequence[float], *, pipelined: bool) -> float:
    """Latency of a generation with retrievals, from the times of its parts.

    Args:
        generation: seconds of each interval.
        retrieval: seconds of the retrieval for each interval but the first.
        pipelined: False adds everything up; True takes the longer of the two for each interval, except for the first
            retrieval, which nothing hides.
    """
    first, *rest = generation
    pairs = list(zip(rest, retrieval, strict=True))
    hidden = pairs[1:] if pipelined else []
    return first + sum(map(sum, pairs[: len(pairs) - len(hidden)])) + sum(map(max, hidden))


class RetrievalPipeline(Generic[Query, Result]):
    """Searches one query at a time behind the caller's work. Belongs to one generation; a context manager.

    How much longer searches take than the curve says (a busy machine) is followed, and shortens the slack.

    Counters: `pipelining.searches`, `.search_s`, `.stall_s` (the caller waited), `.hidden_s` (it did not), `.late`
    (searches that took longer than 1.1 times their slack).
    """

    def __init__(
        self,
        search: Callable[[Query, int], Result],
        retrieval: Curve,
        nlist: int,
        *,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts a thread that waits for queries.

        Args:
            search: takes a query and nprobe.
            retrieval: measured seconds by nprobe.
        """
        self.drag = 1.0
        """Smoothed ratio of searches' seconds to what the curve says."""
        self._search = search
        self._retrieval = retrieval
        self._nlist = nlist
        self._trace = trace or Trace()
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "edge-retrieval")
        self._asked: tuple[Future[tuple[Result, float]], Probes] | None = None

    def ask(self, query: Query, slack: float) -> Probes:
        """Starts a search that should take at most `slack` seconds; one that is still under way is dropped."""
        self._drop()
        fitting = choose_nprobe(self._retrieval, slack / self.drag, self._nlist)
        probes = Probes(fitting.nprobe, fitting.predicted * self.drag, slack)
        self._asked = (self._pool.submit(self._timed, query, probes.nprobe), probes)
        return probes

    def take(self) -> Result:
        """The result of the last query, once; waits for it.

        Raises:
            InputError: nothing was asked.
        """
        if self._asked is None:
            raise InputError("no retrieval is under way; ask first")
        (future, probes), self._asked = self._asked, None
        started = self._clock()
        result, seconds = future.result()
        stall = self._clock() - started
        expected = self._retrieval(probes.nprobe)
        if expected > 0:
            self.drag = max(1.0, self.drag + _SMOOTHING * (seconds / expected - self.drag))
        self._trace.count("pipelining.searches")
        self._trace.count("pipelining.search_s", seconds)
        self._trace.count("pipelining.stall_s", stall)
        self._trace.count("pipelining.hidden_s", max(0.0, seconds - stall))
        if seconds > _TOLERANCE * probes.slack:
            self._trace.count("pipelining.late")
        return result

    def close(self) -> None:
        """Ends the thread; a search under way is waited for."""
        self._drop()
        self._pool.shutdown()

    def __enter__(self) -> RetrievalPipeline[Query, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timed(self, query: Query, nprobe: int) -> tuple[Result, float]:
        started = self._clock()
        with self._trace.span(f"retrieve, nprobe {nprobe}", "retrieval"):
            result = self._search(query, nprobe)
        return result, self._clock() - started

    def _drop(self) -> None:
        if self._asked is not None:
            self._asked[0].cancel()
            self._asked = None
