"""`PassageReader`: where passages answer a question, how probable that is, and what is shown of them. A cross-encoder's
probability for a passage mostly tells its subject, so its windows are judged as well, and the reranker's reader (see
`edge.runtimes.reader`) finds the answer in them. Without a reader, the passage's probability decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

import numpy as np

from edge.apps.assistant.question import content_words, judged_question
from edge.apps.assistant.units import Unit, Window, units, windows
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.query import stems
from edge.apps.documents.kinds import WORD
from edge.apps.verbs.requests import AskOptions
from edge.errors import InputError
from edge.models.evidence import RESULT_SIGNALS, Evidence, fit, log_odds, result_signals, results_name
from edge.runtimes.generation.base import Document
from edge.runtimes.reader import Span

ANSWER = 2 / 3
"""The probability from which a window is shown as the answer: a wrong answer costs as much as two right ones bring.
Below it, it is shown as the nearest passage."""

EXACT = 0.85
"""The probability from which the best unit is shown alone. Fewer words are worth less than a right answer."""

LIKELY = 0.5
"""The same for the reranker's probability of a whole passage."""

NEAREST = 0.15
"""The probability below which the question is not answered at all."""

_READ = 2
"""The passages that are read, those of the highest probability."""


@dataclass(frozen=True, slots=True)
class Answering:
    """A window that may answer: the number of its `passage`, the `unit` and `span` that hold the answer, the reranker's
    probability of passage and window. `worth` compares the windows of one question; `probability` is that of the unit,
    `around` that of the window."""

    passage: int
    window: Window
    unit: Unit
    span: Span
    relevance: float
    window_relevance: float = 0.0
    signals: tuple[float, ...] = ()
    worth: float = 0.0
    probability: float = 0.0
    around: float = 0.0

    @property
    def shown(self) -> tuple[Unit, ...]:
        return self.window.only(self.unit) if self.probability >= EXACT else self.window.shown


@dataclass(frozen=True, slots=True)
class Reading:
    """What passages say about a question, the most probable window first. From `certain` it is shown as the answer. Not
    `sure`: the reader does not know the language of the question or of the best passage."""

    answers: tuple[Answering, ...] = ()
    certain: float = ANSWER
    sure: bool = True

    @property
    def exact(self) -> bool:
        return bool(self.answers) and self.answers[0].probability >= EXACT

    @property
    def probability(self) -> float:
        if not self.answers:
            return 0.0
        found = self.answers[0].probability if self.exact else self.answers[0].around
        return found if self.sure else max(found, NEAREST)

    @property
    def is_answer(self) -> bool:
        """Whether what is shown is shown as the answer, and not as a part of the nearest passage."""
        return self.probability >= self.certain


class PassageReader:
    """Reads passages with a collection's reranker. Thread-safe. The last reading is kept: passages are read to decide,
    and again to show."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.RLock()
        self._last: tuple[str, tuple[str, ...], Reading] | None = None

    def read(self, question: str, passages: Sequence[Document], relevance: Sequence[float] = ()) -> Reading:
        """What passages (see `document_of`) say about a question. `relevance`: the reranker's probability of each;
        judged anew if not given. Raises the errors of `Collection.search`."""
        texts = tuple(passage.text for passage in passages)
        with self._lock:
            if self._last is None or self._last[:2] != (question, texts):
                self._last = question, texts, self._reading(question, passages, relevance)
            return self._last[2]

    def _reading(self, question: str, passages: Sequence[Document], relevance: Sequence[float]) -> Reading:
        if not passages:
            return Reading()
        if len(relevance) != len(passages):
            relevance = self._collection.relevance(question, [passage.text for passage in passages])
        best = sorted(range(len(passages)), key=lambda number: -relevance[number])[:_READ]
        choices = [(number, window) for number in best for window in windows(all_units(passages[number]))]
        read = self._spans(question, passages, choices)
        known, foreign = list[Answering](), list[Answering]()
        for number, window in choices:
            if read and number in read:
                unit = max(window.units, key=lambda part: read[number][part].probability)
                known.append(Answering(number, window, unit, read[number][unit], relevance[number]))
            else:  # the unit is told by its words
                unit = max(window.units, key=lambda part: _shared(question, part.text))
                span = Span(unit.start, unit.end, 0.0)
                chance, shared = relevance[number] if read is None else 0.0, _shared(question, window.text)
                foreign.append(Answering(number, window, unit, span, relevance[number], shared, around=chance))
        seen = known if read is not None else foreign
        texts = [f"{passages[each.passage].title}\n{each.window.text}" for each in seen]
        judged = zip(seen, self._collection.relevance(question, texts), strict=True)
        seen[:] = [replace(each, window_relevance=chance) for each, chance in judged]
        if known:
            known = _with_signals(question, known)
            chances = self._collection.models.answering([each.signals for each in known])
            known = [
                replace(each, worth=worth, probability=unit, around=window)
                for each, (worth, unit, window) in zip(known, chances, strict=True)
            ]
        # `sorted` is stable: of equal probabilities the better passage comes first.
        ordered = sorted(known + foreign, key=lambda answer: (-answer.worth, -answer.window_relevance))
        certain, sure = (LIKELY, True) if read is None else (ANSWER, best[0] in read)
        return Reading(tuple(ordered), certain, sure)

    def _spans(
        self, question: str, passages: Sequence[Document], choices: Sequence[tuple[int, Window]]
    ) -> dict[int, dict[Unit, Span]] | None:
        """For each passage the best span of each unit of its windows, without passages in languages that the reader
        does not know; None without a reader."""
        units: dict[int, dict[Unit, None]] = {}
        for number, window in choices:  # which overlap, and no unit is read twice
            units.setdefault(number, {}).update(dict.fromkeys(window.units))
        texts = [passages[number].text for number in units]
        places = [[(unit.start, unit.end) for unit in own] for own in units.values()]
        found = self._collection.models.read(question, texts, places)
        if found is None:
            return None
        return {
            number: dict(zip(own, spans, strict=True))
            for (number, own), spans in zip(units.items(), found, strict=True)
            if spans is not None
        }


def _with_signals(question: str, windows: Sequence[Answering]) -> list[Answering]:
    odds = [log_odds(each.window_relevance) for each in windows]
    return [
        replace(
            each,
            signals=(
                log_odds(each.relevance),
                own,
                log_odds(each.span.probability),
                _shared(question, each.window.text),
                own - median(odds),
            ),
        )
        for each, own in zip(windows, odds, strict=True)
    ]


def document_of(hit: Hit) -> Document:
    """A hit as a generator is given it, with its units."""
    return Document(hit.key, hit.text, title_of(hit), units(hit.text, hit.kinds))


def all_units(passage: Document) -> Sequence[Unit]:
    return units(passage.text) if passage.parts is None else cast(Sequence[Unit], passage.parts)


def title_of(hit: Hit) -> str:
    """The title and headings of a hit on one line, in the form that generators and rerankers are given."""
    return " > ".join(line.strip() for line in (hit.context or hit.title).splitlines() if line.strip())


def _shared(question: str, text: str) -> float:
    """The share of the question's content words that a text holds, by stem."""
    wanted = set(stems(WORD.findall(" ".join(content_words(question)))))
    return len(wanted & set(stems(WORD.findall(text)))) / max(1, len(wanted))


_FEWEST = 8
_RIDGE = 2.0

Results = Sequence[tuple[float, bool]]
"""The blended score of each result of a search, best first, and whether it answers."""


def fitted_pair(
    collection: Collection, asked: Sequence[tuple[str, frozenset[str]]], progress: Callable[[int, int], None] | None
) -> dict[str, Evidence]:
    """The model fitted for the collection's embedder and reranker, by the name under which it is stored. `asked`:
    questions with the paths that answer them; each is asked with these passages and without them."""
    if len(asked) < _FEWEST:
        raise InputError(
            f"probabilities are fitted on at least {_FEWEST} queries with relevant documents, not {len(asked)}"
        )
    found: list[Results] = []
    for number, (question, right) in enumerate(asked, 1):
        hits = collection.candidates(question, k=2 * AskOptions().pool)
        for pool in (hits, [hit for hit in hits if hit.path not in right]):
            ranked = merge(
                collection.rerank(judged_question(question), pool, AskOptions().read, judged=AskOptions().pool),
                AskOptions().read,
            )
            found.append([(hit.stages.blend or 0.0, hit.path in right) for hit in ranked])
        if progress is not None:
            progress(number, len(asked))
    return fitted_on(found, collection.embedder.model.name)


def fitted_on(found: Sequence[Results], embedder: str) -> dict[str, Evidence]:
    blended = [values for results in found for values in result_signals([score for score, _ in results])]
    answers = np.array([right for results in found for _, right in results])
    model = fit(np.array(blended), answers, ridge=_RIDGE)
    return {results_name(embedder): Evidence(RESULT_SIGNALS, model, 0.0, embedder, len(answers))}
