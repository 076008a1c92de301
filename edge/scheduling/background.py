"""Work in parallel with the caller's. `Background` runs one piece after another; new work replaces waiting work.

`RetrievalPipeline` is retrieval during generation (PipeRAG): at each interval the text so far is a query, whose result
is used one interval later; the search probes as many lists as fit into that time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from edge.errors import InputError
from edge.resident import Closing
from edge.trace import Trace

Work = Callable[[], object]


class Background:
    """A thread that runs while there is work. `submit` and `settle` belong to one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: Work | None = None
        self._thread: threading.Thread | None = None
        self._began: float | None = None
        self._took = 0.0
        self._errors: list[BaseException] = []  # at most one; raised out of the list, it keeps no frame alive

    @property
    def busy(self) -> bool:
        with self._lock:
            return self._thread is not None

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._took + (0.0 if self._began is None else time.perf_counter() - self._began)

    def submit(self, work: Work) -> None:
        with self._lock:
            self._waiting = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Drops waiting work, and waits for running work. What a piece raised since the last call is raised again."""
        with self._lock:
            self._waiting = None
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._errors:
            raise self._errors.pop()

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._waiting = self._waiting, None
                if work is None:
                    self._thread = None
                    return
                self._began = began = time.perf_counter()
            try:
                work()
            except BaseException as error:  # `settle` raises it
                self._errors = [error]
            finally:
                with self._lock:
                    self._took += time.perf_counter() - began
                    self._began = None


Query = TypeVar("Query")
Result = TypeVar("Result")

_TOLERANCE = 1.1


class RetrievalPipeline(Closing, Generic[Query, Result]):
    """Searches one query at a time in a thread beside the caller's work. For one generation; a context manager.

    Counters: `pipelining.searches`, `.search_s`, `.stall_s`, `.hidden_s`, `.late` (searches that took over 1.1 times
    the time from `ask` to `take`), `.slack_error_s`."""

    def __init__(
        self,
        search: Callable[[Query, float], Result],
        *,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts a thread that waits for queries. `search` gets a query and the seconds that the search may take."""
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
        """Waits for the result of the last query, and returns it. Each result can be taken once."""
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
        self._drop()
        self._pool.shutdown()

    def _timed(self, query: Query, slack: float) -> tuple[Result, float]:
        started = self._clock()
        with self._trace.span("retrieve behind", "retrieval"):
            result = self._search(query, slack)
        return result, self._clock() - started

    def _drop(self) -> None:
        if self._asked is not None:
            self._asked[0].cancel()
            self._asked = None
