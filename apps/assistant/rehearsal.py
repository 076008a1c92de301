"""`Rehearsal`: while a generator elsewhere writes a query, its search runs already for the text so far. The search
itself then finds its lists read, and most of its pairs ranked (`edge.runtimes.scoring`). It changes times, never
results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from edge.apps.assistant.answer import Cancelled
from edge.apps.assistant.retrieval import Becoming, Retrieval, Slowness
from edge.errors import EdgeError
from edge.scheduling.background import Background
from edge.scheduling.predictor import BenefitGate
from edge.scheduling.waiting_line import BATCH, Urgency, current_urgency, urgent

REHEARSAL = "rehearsal"
_RETRIEVAL = "retrieval"
"""The predictor's name, with the key of the gate, for a search and its ranking of which nothing ran before."""

_FIRST, _GROWTH = 100, 1.5
"""The characters of a reply from which on it is searched for, and again when it is so many times as long."""


class Rehearsal:
    """Runs the next search of one answer ahead. All calls come from the answer's thread. `ran` counts the searches
    since `begin`."""

    def __init__(self, run: Callable[[Sequence[Retrieval], str], object], gate: BenefitGate) -> None:
        """`run` searches for some queries, and ranks what it finds by a question, or by their words if that is
        empty."""
        self.ran = 0
        self._run = run
        self._gate = gate
        self._behind = Background("edge-rehearsal")
        self._slowness = Slowness(gate.predictor, self._behind)
        self._urgency = Urgency(BATCH)
        self._where = self._rank_by = ""
        self._open = False
        self._next = 0
        self._before: set[str] = set()
        self._tried: set[str] = set()

    def begin(self, where: str, becoming: Becoming, rank_by: str) -> None:
        """Begins with what an empty reply would lead to. `where`: the key of the gate; `rank_by`: the question that
        passages are ranked by, the words of their query if it is empty."""
        self.ready()
        self.ran, self._next, self._where, self._rank_by = 0, _FIRST, where, rank_by
        self._tried = set()
        self._slowness.begin(where)
        whole = self._gate.predictor.seconds(f"{_RETRIEVAL}/{where}")
        cost = None if whole is None else self._slowness.share(whole)
        self._open = self._gate.opens(REHEARSAL, where, cost)
        self._before = self._words(becoming(""))
        self._submit(becoming(""))

    def follow(self, becoming: Becoming, written: str) -> None:
        """After each token: runs those queries whose words, which passages are ranked by, do not grow any more."""
        self._slowness.learn()
        if not self._open or self._behind.busy:
            return
        queries = becoming(written)
        before, self._before = self._before, self._words(queries)
        is_long = len(written) >= self._next
        if is_long:
            self._next = int(_GROWTH * len(written))
        ended = (query for query in queries if self._words([query]) <= before)
        self._submit([query for query in ended if is_long or not self._words([query]) <= self._tried])

    def ready(self) -> None:
        """Ends it; called when the search begins. What runs is then as urgent as the search."""
        self._open = False
        self._urgency.priority = current_urgency().priority
        self._behind.settle()

    def judge(self, seconds: float) -> None:
        """Learns from the search itself, which took so long."""
        predictor, work = self._gate.predictor, f"{_RETRIEVAL}/{self._where}"
        if not self.ran:
            predictor.learn(work, 1, seconds)
        elif (whole := predictor.seconds(work)) is not None:
            self._gate.learn(REHEARSAL, self._where, whole.mean - seconds)
        self.ran = 0

    def _words(self, queries: Sequence[Retrieval]) -> set[str]:
        return {self._rank_by or query.words for query in queries}

    def _submit(self, queries: Sequence[Retrieval]) -> None:
        if self._open and queries:
            self._tried |= self._words(queries)
            self._urgency = urgency = Urgency(BATCH)
            self._behind.submit(lambda: self._rehearse(queries, urgency))

    def _rehearse(self, queries: Sequence[Retrieval], urgency: Urgency) -> None:
        started = time.perf_counter()
        with suppress(EdgeError, Cancelled), urgent(urgency):  # the search itself will say it
            self._run(queries, self._rank_by)
            took = time.perf_counter() - started
            if not self.ran:
                self._gate.predictor.learn(f"{_RETRIEVAL}/{self._where}", 1, took)
            self.ran += 1
