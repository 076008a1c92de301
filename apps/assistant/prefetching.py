"""Looking ahead while something is written: clusters near to what will be looked for are fetched (TeleRAG, section
4.1).

TeleRAG predicts once, from what is there before the writing begins. Here the prediction may follow the text as it
grows: a passage half written is nearer to its query than the question it is written for. Both are done only where they
save more seconds than they cost (`edge.benefit`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge.apps.assistant.base import Ahead, Library, Vectors
from edge.apps.assistant.judged_question import judged_question
from edge.benefit import BenefitGate
from edge.predictor import Seconds

LOOKAHEAD = "lookahead"
FOLLOWING = "following"
"""Kinds of speculative work, as the gate knows them."""

_LEAST_S = 0.1
"""Between two predictions."""

_PATIENCE = 10
"""So many times as long as it took to make a prediction passes until the next: at most a tenth of the time is spent."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: words by the full-text index, and the neighbourhood of the mean of some texts' vectors."""

    words: str
    near: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Query:
        """Both by the same text."""
        return cls(text, (text,))

    @classmethod
    def asked(cls, question: str) -> Query:
        """By a question's words; near to it and to its sentence that asks, if that is something else: of a long text
        a vector holds little of what is asked at its end."""
        return cls(question, tuple(dict.fromkeys((judged_question(question), question))))


Becoming = Callable[[str], Sequence[Query]]
"""The queries that a reply would lead to if it ended here; none while nothing can be said."""

Left = Callable[[int], Seconds | None]
"""What a reply still takes when so many tokens of it are written; None if nobody knows."""


class Embedded(Protocol):
    """Vectors of queries, and what making them costs (`query_vectors.QueryVectors`)."""

    def of(self, queries: Sequence[Query]) -> Vectors: ...

    def cost(self, queries: Sequence[Query]) -> Seconds | None: ...


class Prefetcher:
    """What is being fetched for the next search of one answer.

    Attributes:
        window: the fetching under way, or ended and still to be used; None if there is none.
    """

    def __init__(
        self,
        library: Library,
        vectors: Embedded,
        gate: BenefitGate,
    ) -> None:
        self.window: Ahead | None = None
        self._library = library
        self._vectors = vectors
        self._gate = gate
        self._where = ""
        self._left: Left = lambda written: None
        self._near: Vectors | None = None
        self._labels: list[tuple[str, str]] = []
        self._end: float | None = None
        self._next = 0.0
        self._following: bool | None = None

    def begin(self, where: str, near: Sequence[str], left: Left) -> None:
        """Starts fetching near the mean of some texts, as much as arrives while a reply is written, if that pays. If it
        does not, what was begun before goes on.

        Args:
            where: the step of a pipeline.
        """
        queries = [Query("", tuple(near))]
        self._where, self._left, self._following, self._near = where, left, None, None
        if self._gate.opens(LOOKAHEAD, where, self._vectors.cost(queries)):
            self._predict(queries, LOOKAHEAD, 0)

    def follow(self, becoming: Becoming | None, written: str, tokens: int) -> None:
        """Predicts again when it is time to, from what is written by now if that pays. Where it does not, a reply that
        goes on for longer than was expected has the same prediction continued.

        Args:
            tokens: how many are written.
        """
        now = time.perf_counter()
        if self._near is None or now < self._next:
            return
        queries = becoming(written) if becoming is not None and self._following is not False else ()
        if queries and self._following is None:
            self._following = self._gate.opens(FOLLOWING, self._where, self._vectors.cost(queries))
        if queries and self._following:
            self._predict(queries, FOLLOWING, tokens)
        elif self._end is not None and now >= self._end:
            self._fetch(self._near, LOOKAHEAD, tokens)

    def close(self) -> None:
        """Ends the fetching, and learns what it was good for."""
        window, self.window, self._near = self.window, None, None
        labels, self._labels = self._labels, []
        if window is None:
            return
        saved: dict[tuple[str, str], list[float]] = defaultdict(list)
        for label, outcome in zip(labels, window.cancel(), strict=False):
            saved[label].append(outcome.saved_s if outcome.added_s is None else outcome.added_s)
        for (kind, where), seconds in saved.items():
            # Each following asks for its own share of the time; a prediction that is continued costs nothing.
            self._gate.learn(kind, where, sum(seconds) / (len(seconds) if kind == FOLLOWING else 1))

    def _predict(self, queries: Sequence[Query], kind: str, tokens: int) -> None:
        started = time.perf_counter()
        vectors = self._vectors.of(queries)
        self._next = time.perf_counter() + max(_LEAST_S, _PATIENCE * (time.perf_counter() - started))
        self._fetch(vectors, kind, tokens)

    def _fetch(self, vectors: Vectors, kind: str, tokens: int) -> None:
        started = time.perf_counter()
        left = self._left(tokens)
        seconds = None if left is None else left.upper  # what has not begun when the search comes is withdrawn
        window = self._library.lookahead(vectors, seconds=seconds)
        self._gate.predictor.learn(LOOKAHEAD, 1, time.perf_counter() - started)
        self._end = None if seconds is None else started + seconds
        if window is None:
            return
        if not window.nbytes:  # nothing can be fetched: what was asked for before is better than that
            window.cancel()
            return
        if self.window is not None:
            window.supersede(self.window, follows=kind == FOLLOWING)
        self.window, self._near = window, vectors
        self._labels.append((kind, self._where))
