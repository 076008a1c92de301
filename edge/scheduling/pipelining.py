"""Retrieval during generation (PipeRAG): a slightly stale query is asked early and searched as widely as time allows.

At each interval, the text so far is a query, and its result is used one interval later. The search may take as long as
generating the next interval takes, and probes as many lists as fit into that time (`edge.ivf.search_cost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from edge.errors import InputError
from edge.trace import Trace

Query = TypeVar("Query")
Result = TypeVar("Result")

_TOLERANCE = 1.1


class RetrievalPipeline(Generic[Query, Result]):
    """Searches one query at a time in a thread beside the caller's work. For one generation; a context manager.

    Counters: `pipelining.searches`, `.search_s`, `.stall_s` (the caller waited), `.hidden_s` (the caller did not wait),
    `.late` (searches that took longer than 1.1 times the time from `ask` to `take`, regardless of the predicted slack),
    `.slack_error_s` (difference of the predicted slack and that time).
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
            search: called with a query and the seconds that the search may take.
        """
        self._search = search
        self._trace = trace or Trace()
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "edge-retrieval")
        self._asked: tuple[Future[tuple[Result, float]], float, float] | None = None

    def ask(self, query: Query, slack: float) -> None:
        """Starts a search that should take at most `slack` seconds, and drops an earlier one that was not taken."""
        self._drop()
        self._asked = self._pool.submit(self._timed, query, slack), slack, self._clock()

    def take(self) -> Result:
        """Waits for the result of the last query, and returns it. Each result can be taken once.

        Raises:
            InputError: no search was started.
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
        """Ends the thread, after waiting for a running search."""
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
