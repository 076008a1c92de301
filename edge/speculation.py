"""Prefill before the search has ended: dynamic speculative pipelining (RAGCache, section 5.3).

A search that runs in stages has its final documents early, mostly. While it goes on, the documents it has so far are
brought in context; when it ends with the same ones, the answer can begin at once. A wrong guess costs work and nothing
else: what is in context is decided by the knowledge tree, token by token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from edge.errors import EdgeError
from edge.knowledge.backend import Segment
from edge.knowledge.tree import KnowledgeTree
from edge.trace import Trace

Path = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """Tokens that a guess computed, for each segment of its path."""

    path: Path
    computed: tuple[int, ...]

    def beyond(self, path: Path) -> int:
        """Those that are of no use for `path`."""
        return sum(self.computed[_common(self.path, path) :])


class Speculation:
    """The guesses of one request, in a thread of its own. A context manager: the answer begins inside it.

    A guess starts only while fewer than `max_prefill` other requests wait or run, and stops when they come. What a new
    guess shares with the one under way is computed on, not anew. What all guesses may compute in vain is bounded.

    Counters: `speculation.started`, `.restarted` (in place of another), `.unchanged`, `.deferred` (the engine was busy,
    or the bound reached), at the end `.agreed` or `.disagreed`, `.failed`, `.useful_tokens`, `.wasted_tokens`.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        *,
        pending: Callable[[], int],
        max_prefill: int = 1,
        max_waste: int = 8192,
        trace: Trace | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            pending: requests other than this one that wait for the model or run on it; asked from two threads.
            max_prefill: with so many of them, nothing is guessed.
            max_waste: tokens that all guesses together may compute in vain.
        """
        self._tree = tree
        self._pending = pending
        self._max_prefill = max_prefill
        self._max_waste = max_waste
        self._trace = trace or Trace()
        self._condition = threading.Condition()
        self._guess: Path | None = None
        self._served: Path | None = None
        self._final: Path | None = None
        self._closed = False
        self._running = False
        self._ahead = 0
        self._work: list[_Work] = []
        self._thread: threading.Thread | None = None

    def stage(self, path: Sequence[Segment]) -> str:
        """Takes the documents that a stage of the search has found, after the system prompt; returns what became of
        them: `started`, `restarted`, `unchanged` or `deferred`."""
        with self._condition:
            decision = self._decide(tuple(path))
        self._trace.count(f"speculation.{decision}")
        self._trace.mark(decision, "speculation", documents=[segment.id for segment in path])
        return decision

    def finish(self, path: Sequence[Segment]) -> bool:
        """Takes the final documents; returns whether they are those guessed last. What the guess under way shares with
        them it goes on computing, and the request finds it in context; the rest stops at the next batch."""
        with self._condition:
            self._final = tuple(path)
            agreed = self._guess == self._final
            self._condition.notify()
        self._trace.count("speculation.agreed" if agreed else "speculation.disagreed")
        return agreed

    def close(self) -> None:
        """Ends the thread, and counts what was of use."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        computed = sum(sum(work.computed) for work in self._work)
        wasted = sum(work.beyond(self._final or ()) for work in self._work)
        self._work.clear()
        self._trace.count("speculation.wasted_tokens", wasted)
        self._trace.count("speculation.useful_tokens", computed - wasted)

    def __enter__(self) -> Speculation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self, path: Path) -> str:
        if path == self._guess:
            return "unchanged"
        before, self._guess = self._guess, None  # the guess under way is wrong
        busy = self._pending() >= self._max_prefill or (self._tree.busy and not self._running)
        missing = self._tree.match(path).missing
        spent = sum(sum(work.computed) for work in self._work) + self._ahead
        if busy or spent + missing > self._max_waste:
            return "deferred"
        self._guess, self._served = path, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="edge-speculation", daemon=True)
            self._thread.start()
        self._condition.notify()
        return "started" if before is None else "restarted"

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._closed and self._final is None and self._guess in (None, self._served):
                    self._condition.wait()
                path = self._guess
                if self._closed or self._final is not None or path is None:
                    return
                self._served, self._running = path, True
                self._ahead = self._tree.match(path).missing
            computed = self._compute(path)
            with self._condition:
                self._running, self._ahead = False, 0
                self._work.append(_Work(path, computed))

    def _compute(self, path: Path) -> tuple[int, ...]:
        """Brings a guess in context as long as it is wanted; returns tokens computed for each segment."""
        try:
            with self._tree.prepare(path, speculative=True, cancelled=partial(self._unwanted, path)) as prepared:
                complete = prepared.complete
        except EdgeError:
            self._trace.count("speculation.failed")  # the request itself will meet the same and say so
            return ()
        if not complete:
            with self._condition:
                if self._guess == path:  # stopped for others' sake: it may be guessed again
                    self._guess = self._served = None
        return tuple(prepared.computed)

    def _unwanted(self, path: Path, position: int) -> bool:
        """Whether to stop the guess under way at its segment `position`."""
        wanted = self._final if self._final is not None else self._guess
        if self._final is None and (self._closed or self._pending() >= self._max_prefill):
            return True
        return wanted is None or position >= _common(wanted, path)


def _common(one: Path, other: Path) -> int:
    """Segments at the start that two paths share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
