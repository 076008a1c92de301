"""Looking ahead while something is written: clusters near to what will be looked for are fetched (TeleRAG, section
4.1).

TeleRAG predicts once, from what is there before the writing begins. Here the prediction follows the text as it grows: a
passage half written is nearer to its query than the question it is written for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.apps.assistant.base import Ahead, Library, Vectors
from edge.apps.assistant.judged_question import judged_question

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


class Prefetcher:
    """What is being fetched for the next search of one answer.

    Attributes:
        window: the fetching under way, or ended and still to be used; None if there is none.
    """

    def __init__(self, library: Library, embed: Callable[[Sequence[Query]], Vectors]) -> None:
        self.window: Ahead | None = None
        self._library = library
        self._embed = embed
        self._expected_end: float | None = None
        self._next = 0.0

    def begin(self, near: Sequence[str], seconds: float | None) -> None:
        """Starts fetching near the mean of some texts, as much as arrives in so many seconds; None if nobody knows how
        long the writing takes."""
        self._expected_end = None if seconds is None else time.perf_counter() + seconds
        self._predict([Query("", tuple(near))])

    def follow(self, becoming: Becoming, written: str) -> None:
        """Predicts again, from what is written by now, when it is time to."""
        if time.perf_counter() >= self._next and (queries := becoming(written)):
            self._predict(queries)

    def close(self) -> None:
        """Ends the fetching."""
        window, self.window = self.window, None
        if window is not None:
            window.cancel()

    def _predict(self, queries: Sequence[Query]) -> None:
        started = time.perf_counter()
        vectors = self._embed(queries)
        now = time.perf_counter()
        self._next = now + max(_LEAST_S, _PATIENCE * (now - started))
        left = None if self._expected_end is None else max(0.0, self._expected_end - now)
        before, self.window = self.window, self._library.lookahead(vectors, seconds=left)
        if before is not None:  # what both want stays
            before.cancel()
