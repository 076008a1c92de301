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

ANSWER = 0.6
"""The probability from which a window is shown as the answer: a wrong answer costs as much as two right ones bring, and
on questions that nothing was fitted on two thirds are right from here on. Below it, it is shown as the nearest
passage."""

EXACT = 0.85
"""The probability from which the best unit is shown alone. Fewer words are worth less than a right answer."""

LIKELY = 0.5
"""The same for the reranker's probability of a whole passage."""

NEAREST = 0.1
"""The probability below which the question is not answered at all. A wrong refusal hides an answer, and a nearest
passage claims nothing."""

_READ = 2
"""The passages that are read, the first ones."""


@dataclass(frozen=True, slots=True)
class Answering:
    """A window that may answer: the number of its `passage`, the `unit` that may hold the answer, the words of it that
    answer (`span`), and the reranker's probability of passage and window. `worth` compares the windows of one question;
    `probability` is that of the unit, `around` that of the window."""

    passage: int
    window: Window
    unit: Unit
    relevance: float
    window_relevance: float = 0.0
    span: str = ""
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
        """What passages (see `document_of`), best first, say about a question. `relevance`: the reranker's probability
        of each; judged anew if not given. Raises the errors of `Collection.search`."""
        texts = tuple(passage.text for passage in passages)
        with self._lock:
            if self._last is None or self._last[:2] != (question, texts):
                self._last = question, texts, self._reading(question, passages, relevance)
            return self._last[2]

    def _reading(self, question: str, passages: Sequence[Document], relevance: Sequence[float]) -> Reading:
        if not passages:
            return Reading()
        passages = passages[:_READ]
        if len(relevance) < len(passages):
            relevance = self._collection.relevance(question, [passage.text for passage in passages])
        models = self._collection.models
        choices = [(number, window) for number, each in enumerate(passages) for window in windows(all_units(each))]
        readable = models.readable(question, [passage.text for passage in passages])
        knows = readable or [False] * len(passages)
        seen = choices if readable is None else [choice for choice in choices if knows[choice[0]]]
        titles = [passages[number].title for number, _ in seen]
        texts = [f"{title}\n{window.text}" for title, (_, window) in zip(titles, seen, strict=True)]
        judged = dict(zip(seen, self._collection.relevance(question, texts), strict=True))
        known: list[Answering] = []
        if readable is not None:
            places = [window.places(len(title) + 1) for title, (_, window) in zip(titles, seen, strict=True)]
            found = zip(seen, texts, models.read(question, texts, places), strict=True)
            known = [
                _with_span(Answering(*choice, choice[1].units[0], relevance[choice[0]], judged[choice]), text, spans)
                for choice, text, spans in found
            ]
            known = _with_signals(question, known)
            chances = models.answering([each.signals for each in known])
            known = [
                replace(each, worth=worth, probability=unit, around=window)
                for each, (worth, unit, window) in zip(known, chances, strict=True)
            ]
        foreign = [  # the unit is told by its words
            Answering(
                number, window, max(window.units, key=lambda part: _shared(question, part.text)), relevance[number],
                judged.get((number, window), _shared(question, window.text)),
                around=relevance[number] if readable is None else 0.0,
            )
            for number, window in choices if not knows[number]
        ]  # fmt: skip

        def key(answer: Answering) -> tuple[int, float, float]:
            # Before a passage that cannot be read, only an answer comes: the search's order says more than the rest.
            first = knows[0] or answer.around >= ANSWER
            return 0 if first else 1 + answer.passage, -answer.worth, -answer.window_relevance

        # `sorted` is stable: of equal probabilities the better passage comes first.
        ordered = sorted(known + foreign, key=key)
        certain, sure = (LIKELY, True) if readable is None else (ANSWER, knows[0])
        return Reading(tuple(ordered), certain, sure)


def _with_span(window: Answering, text: str, spans: Sequence[Span]) -> Answering:
    """A window with what was read in each of its parts."""
    chances = [span.probability for span in spans]
    parts = spans[len(window.window.headings) :]
    unit, span = max(zip(window.window.units, parts, strict=True), key=lambda each: each[1].probability)
    words = " ".join(text[span.start : span.end].split())
    return replace(window, unit=unit, span=words, signals=(log_odds(max(chances)),))


def _with_signals(question: str, windows: Sequence[Answering]) -> list[Answering]:
    """Windows with the values of `ANSWER_SIGNALS`."""
    odds = [log_odds(each.window_relevance) for each in windows]
    return [
        replace(each, signals=(own, *each.signals, _shared(question, each.window.text), own - median(odds)))
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
