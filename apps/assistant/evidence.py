"""Whether passages answer a question, judged on their units: sentences, items, rows, settings.

A cross-encoder's probability for a whole passage says what the passage is about. A question that is worded otherwise
than its answer has a low one, and one that nobody answers has a high one as soon as something is on its subject. Units
tell more: the unit that answers is nearer to the question, by the reranker and by its vector, than what stands around
it. `edge bench evidence` fits how much each signal counts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge.apps.assistant.layout import quotable
from edge.apps.assistant.units import Unit
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.models import evidence
from edge.models.logistic import log_odds

NAME = "answers"
"""What the fitted model is stored under."""

SIGNALS = ("passage", "unit", "cosine", "cosine_lead", "cosine_over_passage", "lead")
"""Of the best unit: the reranker's log-odds for its passage and for itself, its cosine with the question, how far the
best cosine is above those of the next units, the unit's cosine above its passage's, and its score above the next ones'
scores."""

COSINE_WEIGHT = 12.0
"""Of a unit's cosine beside the reranker's log-odds: chosen on the half `choose` of `edge bench answers`."""

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
    """

    unit: Unit
    passage: int
    relevance: float
    cosine: float

    @property
    def score(self) -> float:
        """What units are compared by, in log-odds."""
        return log_odds(self.relevance) + COSINE_WEIGHT * self.cosine


class UnitJudge:
    """Judges the units of passages by a collection's models, and remembers the last ones: what decides whether there
    is an answer also picks the sentences. Thread-safe."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.Lock()
        self._question = ""
        self._known: dict[str, tuple[float, float]] = {}

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
                self._question, self._known = question, {}
            missing = list(dict.fromkeys(text for _, _, text in found if text not in self._known))
            if missing:
                vectors = self._collection.embed_queries([question, *missing])
                cosines = vectors[1:] @ vectors[0]
                relevance = self._collection.relevance(question, missing)
                self._known |= zip(missing, zip(relevance, map(float, cosines), strict=True), strict=True)
            return [Window(unit, number, *self._known[text]) for number, unit, text in found]

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
        return [log_odds(0.0), log_odds(0.0), 0.0, 0.0, 0.0, 0.0]
    best = max(windows, key=lambda window: window.score)
    hit = hits[best.passage]
    cosines = sorted((window.cosine for window in windows), reverse=True)
    scores = sorted((window.score for window in windows), reverse=True)
    return [
        log_odds(hit.stages.relevance or 0.0),
        log_odds(best.relevance),
        best.cosine,
        _lead(cosines),
        best.cosine - (hit.stages.vector_score or 0.0),
        _lead(scores),
    ]


def title_of(hit: Hit) -> str:
    """Title and headings of a hit on one line, as generators and judges read them."""
    return " > ".join(line.strip() for line in (hit.context or hit.title).splitlines() if line.strip())


def below_headings(title: str, unit: Unit) -> str:
    """A unit as it is judged: below the title of its document and the headings that it stands under."""
    above = title if unit.heading in ("", title) or title.endswith(unit.heading) else f"{title} > {unit.heading}"
    return f"{above}\n{unit.text}" if above else unit.text


def _lead(values: Sequence[float]) -> float:
    """How far the first of some values, in falling order, is above the mean of the next."""
    return float(values[0] - np.mean(values[1 : 1 + _NEXT])) if len(values) > 1 else 0.0
