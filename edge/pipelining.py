"""Retrieval during generation (PipeRAG): a query a little stale, asked early, searched as widely as time allows.

Every interval the text so far is a query whose result is used one interval later. The search may take as long as the
next interval takes to generate: it probes as many lists as fit (`edge.ivf.pace`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from edge.errors import InputError
from edge.trace import Trace

Query = TypeVar("Query")
Result = TypeVar("Result")

_TOLERANCE = 1.1


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

    Counters: `pipelining.searches`, `.search_s`, `.stall_s` (the caller waited), `.hidden_s` (it did not), `.late`
    (searches that took longer than 1.1 times the time from `ask` to `take`: what there really was, whatever slack was
    predicted), `.slack_error_s` (the difference of the two).
    """

    def __init__(
        self,
        search: Callable[[Query, float], Result],
        *,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts a thread that waits for queries.

        Args:
            search: takes a query and the seconds it may take.
        """
        self._search = search
        self._trace = trace or Trace()
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "edge-retrieval")
        self._asked: tuple[Future[tuple[Result, float]], float, float] | None = None

    def ask(self, query: Query, slack: float) -> None:
        """Starts a search that should take at most `slack` seconds; one that is still under way is dropped."""
        self._drop()
        self._asked = self._pool.submit(self._timed, query, slack), slack, self._clock()

    def take(self) -> Result:
        """The result of the last query, once; waits for it.

        Raises:
            InputError: nothing was asked.
        """
        if self._asked is None:
            raise InputError("no retrieval is under way; ask first")
        (future, slack, asked), self._asked = self._asked, None
        started = self._clock()
        had = started - asked
        result, seconds = future.result()
        stall = self._clock() - started
        self._trace.count("pipelining.searches")
        self._trace.count("pipelining.search_s", seconds)
        self._trace.count("pipelining.stall_s", stall)
        self._trace.count("pipelining.hidden_s", max(0.0, seconds - stall))
        self._trace.count("pipelining.slack_error_s", abs(slack - had))
        if seconds > _TOLERANCE * had:
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

    def _timed(self, query: Query, slack: float) -> tuple[Result, float]:
        started = self._clock()
        with self._trace.span("retrieve behind", "retrieval"):
            result = self._search(query, slack)
        return result, self._clock() - started

    def _drop(self) -> None:
        if self._asked is not None:
            self._asked[0].cancel()
            self._asked = None
