"""Answers without a language model: which sentences, items, rows and settings of the passages answer a question."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence

from edge.apps.assistant.evidence import UnitJudge, Window
from edge.apps.assistant.judged_question import judged_question
from edge.runtimes.generation.base import Document, Message, Piece, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator

_MOST = 3
_NEARLY = 2.0
"""A unit is shown beside the best one if its score, in log-odds, is no further below: chosen on the half `choose` of
`edge bench answers`, of whose paraphrased questions 65 % find their answer so, and 59 % with 1."""

_ELSEWHERE = 1.0
"""Log-odds taken from units of other passages than the best unit's: they are often about something else."""

_WORD = re.compile(r"[^\W_]+")
_FEW_WORDS = 4
_LEANING = re.compile(r"(?:it|its|this|that|these|those|they|their|he|his|she|her|such|however|also|so|then)\b", re.I)
"""How sentences begin that need the one before them."""

_QUESTION, _FRAGMENT, _LEANS = 1.0, 0.7, 0.2
"""Log-odds taken from sentences that answer less well than they look."""

_HIDDEN = float("-inf")


class PickedSentences(ExtractiveGenerator):
    """The best units of passages (see `layout`), by the reranker and by their vectors (see `evidence`). One that is
    much worse than the best is left out, so that answers are short."""

    def __init__(self, judge: UnitJudge) -> None:
        super().__init__(self._score, most=_MOST, floor=-1e9, cut=self._quotable)
        self._judge = judge
        self._windows: list[Window] = []
        self._places: dict[str, int] = {}

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """See `ExtractiveGenerator.stream`."""
        question = next((message.content for message in reversed(messages) if message.role == "user"), "")
        self._windows = self._judge.windows(
            judged_question(question), [(document.title, document.text) for document in documents]
        )
        self._places = {document.text: number for number, document in reversed(list(enumerate(documents)))}
        return super().stream(messages, sampling, documents=documents, cancel=cancel)

    def _quotable(self, text: str) -> list[str]:
        place = self._places[text]
        return [window.unit.text for window in self._windows if window.passage == place]

    def _score(self, question: str, found: Sequence[str]) -> list[float]:
        """Scores units, in log-odds; those not worth showing are infinitely bad."""
        best: dict[str, float] = {}
        first = max(self._windows, key=standing, default=None)
        for window in self._windows:
            key = window.unit.text.casefold()
            elsewhere = first is not None and window.passage != first.passage
            best[key] = max(best.get(key, _HIDDEN), standing(window) - _ELSEWHERE * elsewhere)
        scores = [best[text.casefold()] for text in found]
        least = max(scores) - _NEARLY
        return [score if score >= least else _HIDDEN for score in scores]


def standing(window: Window) -> float:
    """How well a unit answers as a statement of its own, in log-odds."""
    text, score = window.unit.text, window.score
    if text.endswith("?"):
        score -= _QUESTION
    if window.unit.kind == "sentence" and len(_WORD.findall(text)) < _FEW_WORDS:
        score -= _FRAGMENT
    if _LEANING.match(text):
        score -= _LEANS
    return score
