"""Whether passages answer a question, judged on their units: sentences, items, rows, settings.

A cross-encoder's probability for a whole passage says what the passage is about. A question that is worded otherwise
than its answer has a low one, and one that nobody answers has a high one as soon as something is on its subject. A
small cross-encoder also prefers short units that could stand below any question. Units tell more together with their
vectors, and with the vectors of their words: the unit that answers is nearer to the question than what stands around
it, and each word of the question has a near one in its passage. `edge bench evidence` fits how much each signal counts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge.apps.assistant.layout import quotable
from edge.apps.assistant.units import Unit
from edge.apps.assistant.word_nearness import WordNearness
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.models import evidence
from edge.models.logistic import log_odds

NAME = "answers"
"""What the fitted model is stored under."""

SIGNALS = ("passage", "words", "cosine_lead", "least_near", "repeated")
"""The reranker's log-odds for the best passage; BM25's score of the best unit's passage; how far the best cosine of a
unit is above those of the next; of the question's words the one that has no near one in the best unit's passage: its
cosine; and the share of them that the best unit repeats. A unit that repeats the question and convinces the reranker
no more than that is often about something similar."""

RELEVANCE, COSINE, NEARNESS, LENGTH = 0.37, 11.8, 6.9, 0.49
"""What counts for a unit: the reranker's log-odds, its cosine with the question, the mean nearness of the question's
words, and the logarithm of its own number of words. Fitted so that units are log-odds of being the one that answers,
on the half `choose` of `edge bench answers`."""

_MOST_WORDS_SCORE = 30.0
"""BM25 scores above this say no more."""

_NEXT = 5
"""Units that the best one is compared with."""

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Window:
    """A judged unit.

    Attributes:
        passage: its passage's place among those that were judged.
        relevance: the reranker's probability that the unit, below its headings, answers the question.
        cosine: of its vector with the question's.
        nearness: mean of the cosines of the question's words, each with its nearest in the unit and its headings.
        repeated: share of the question's words that stand there.
        least_near: the smallest of the cosines of the question's words with their nearest in the whole passage.
    """

    unit: Unit
    passage: int
    relevance: float
    cosine: float
    nearness: float = 0.0
    repeated: float = 0.0
    least_near: float = 0.0

    @property
    def score(self) -> float:
        """What units are compared by, in log-odds."""
        words = math.log1p(len(self.unit.text.split()))
        return RELEVANCE * log_odds(self.relevance) + COSINE * self.cosine + NEARNESS * self.nearness + LENGTH * words


class UnitJudge:
    """Judges the units of passages by a collection's models, and remembers the last ones: what decides whether there
    is an answer also picks the sentences. Thread-safe."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.Lock()
        self._question = ""
        self._known: dict[str, tuple[float, float]] = {}
        self._words = WordNearness("")

    def windows(self, question: str, passages: Sequence[tuple[str, str]]) -> list[Window]:
        """The judged units of passages, (title, text) each, in their order.

        Raises:
            As `Collection.search`.
        """
        found = [
            (number, unit, below_headings(title, unit))
            for number, (title, text) in enumerate(passages)
            for unit in quotable(text)
        ]
        with self._lock:
            if self._question != question or len(self._known) > _REMEMBERED:
                self._question, self._known, self._words = question, {}, WordNearness(question)
            missing = list(dict.fromkeys(text for _, _, text in found if text not in self._known))
            if missing:
                vectors = self._collection.embed_queries([question, *missing])
                cosines = vectors[1:] @ vectors[0]
                relevance = self._collection.relevance(question, missing)
                self._known |= zip(missing, zip(relevance, map(float, cosines), strict=True), strict=True)
            whole = [f"{title}\n{text}" for title, text in passages]
            self._words.learn((*whole, *(text for _, _, text in found)), self._collection.embed_queries)
            least = [float(self._words.nearest(text).min()) for text in whole]
            return [self._window(unit, number, text, least[number]) for number, unit, text in found]

    def _window(self, unit: Unit, passage: int, text: str, least: float) -> Window:
        words = self._words
        return Window(unit, passage, *self._known[text], words.mean(text), words.repeated(text), least)

    def probability(self, question: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        """The probability that hits answer a question, and the one that is enough; None if nothing was fitted for the
        models in use. Raises as `windows` does."""
        reranker = self._collection.reranker.model
        fitted = evidence.load(reranker.path, NAME, reranker.fingerprint, SIGNALS)
        if fitted is None or not hits or fitted.embedder != self._collection.embedder.model.name:
            return None
        windows = self.windows(question, [(title_of(hit), hit.text) for hit in hits])
        return fitted.probability(signals(windows, hits)), fitted.threshold


def signals(windows: Sequence[Window], hits: Sequence[Hit]) -> list[float]:
    """The values of `SIGNALS` for judged units of some hits; of none, those of a question that nothing answers."""
    if not windows:
        return [log_odds(0.0), 0.0, 0.0, 0.0, 0.0]
    best = max(windows, key=lambda window: window.score)
    cosines = sorted((window.cosine for window in windows), reverse=True)
    return [
        log_odds(max(hit.stages.relevance or 0.0 for hit in hits)),
        min(hits[best.passage].stages.lexical_score or 0.0, _MOST_WORDS_SCORE),
        float(cosines[0] - np.mean(cosines[1 : 1 + _NEXT])) if len(cosines) > 1 else 0.0,
        best.least_near,
        best.repeated,
    ]


def title_of(hit: Hit) -> str:
    """Title and headings of a hit on one line, as generators and judges read them."""
    return " > ".join(line.strip() for line in (hit.context or hit.title).splitlines() if line.strip())


def below_headings(title: str, unit: Unit) -> str:
    """A unit as it is judged: below the title of its document and the headings that it stands under."""
    above = title if unit.heading in ("", title) or title.endswith(unit.heading) else f"{title} > {unit.heading}"
    return f"{above}\n{unit.text}" if above else unit.text
