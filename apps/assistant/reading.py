"""`PassageReader`: where passages answer a question, how probable that is, and what is shown of them.

A cross-encoder's probability for a whole passage mostly tells the passage's subject. The reranker's reader (see
`edge.runtimes.reader`) finds the answer in it. Both together give the probability that the unit around the answer (its
sentence, row, item, setting or lines of code) is right, and that the words around this unit hold the answer. Without a
reader, the reranker's probability decides, and the best passage is shown in part.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from edge.apps.assistant.question import content_words
from edge.apps.assistant.units import Unit, quotable, units
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stems
from edge.runtimes.generation.base import Document

ANSWER = 2 / 3
"""The probability from which the words around the best unit are shown as the answer: a wrong answer costs as much as
two right ones bring. Below it, they are shown as the nearest passage."""

EXACT = 0.85
"""The probability from which the best unit is shown alone. Fewer words are worth less than a right answer."""

LIKELY = 0.5
"""The same for the reranker's probability of a whole passage, of which `_WORDS` words are shown. On 34 passages of 70
questions that reached it, 32 held the answer."""

NEAREST = 0.15
"""The probability below which the question is not answered at all."""

_WORDS = 60
"""The most words that are shown of the nearest passage, around its best unit."""

_CODE_LINES = 12
"""The most lines of a block of code that are shown with the answer inside it."""


@dataclass(frozen=True, slots=True)
class Answering:
    """The most probable answer in one passage.

    Attributes:
        passage: the number of the passage, from 0.
        unit: the unit that is shown.
        start, end: the answer itself in the passage, in characters.
        probability: the probability that the unit answers the question.
        around: the probability that the words around the unit do (see `nearest`).
    """

    passage: int
    unit: Unit
    start: int
    end: int
    probability: float
    around: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What passages say about a question.

    Attributes:
        answers: the most probable answer of each passage, the most probable first.
        certain: the probability from which the words around the best one are shown as the answer.
        sure: whether the probabilities tell that a question is not answered. They do not where the reader does not know
            the language of the question or of the best passage.
    """

    answers: tuple[Answering, ...] = ()
    certain: float = ANSWER
    sure: bool = True

    @property
    def exact(self) -> bool:
        """Whether the best unit alone is shown."""
        return bool(self.answers) and self.answers[0].probability >= EXACT

    @property
    def probability(self) -> float:
        """The probability that what is shown answers the question."""
        if not self.answers:
            return 0.0
        found = self.answers[0].probability if self.exact else self.answers[0].around
        return found if self.sure else max(found, NEAREST)

    @property
    def is_answer(self) -> bool:
        """Whether what is shown is shown as the answer, and not as a part of the nearest passage."""
        return self.probability >= self.certain


class PassageReader:
    """Reads passages with a collection's reranker. Thread-safe. The last reading is kept, because the same passages are
    read twice: to decide whether there is an answer, and to show it."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.RLock()
        self._last: tuple[str, tuple[str, ...], Reading] | None = None

    def read(self, question: str, passages: Sequence[Document], relevance: Sequence[float] = ()) -> Reading:
        """What passages say about a question.

        Args:
            passages: see `document_of`.
            relevance: the reranker's probability of each passage; judged anew if it is needed and not given.

        Raises:
            The errors of `Collection.search`.
        """
        texts = tuple(passage.text for passage in passages)
        with self._lock:
            if self._last is None or self._last[:2] != (question, texts):
                self._last = question, texts, self._reading(question, passages, relevance)
            return self._last[2]

    def _reading(self, question: str, passages: Sequence[Document], relevance: Sequence[float]) -> Reading:
        if not passages:
            return Reading()
        texts, parts = [passage.text for passage in passages], [units_in(passage) for passage in passages]
        if len(relevance) != len(passages):
            relevance = self._collection.relevance(question, texts)
        models = self._collection.models
        spans = models.read(question, texts, [[(unit.start, unit.end) for unit in each] for each in parts])
        given = spans or [None] * len(passages)
        read = [span.probability for span in given if span is not None]
        judged = [chance for chance, span in zip(relevance, given, strict=True) if span is not None]
        chances = iter(models.answering(read, judged) if read else ())
        found: list[Answering] = []
        for number, (passage, span) in enumerate(zip(passages, given, strict=True)):
            unit_chance, around = (0.0, 0.0 if spans else relevance[number]) if span is None else next(chances)
            if span is not None and parts[number]:
                unit = unit_at(passage, span.start, span.end)
                found.append(Answering(number, unit, span.start, span.end, unit_chance, around))
            elif parts[number]:  # the unit is told by its words
                unit = max(parts[number], key=lambda part: _shared(question, part.text))
                found.append(Answering(number, unit, unit.start, unit.end, unit_chance, around))
        # `sorted` is stable: of equal probabilities the better passage comes first.
        best = sorted(found, key=lambda answer: (-answer.probability, -answer.around))
        return Reading(tuple(best), ANSWER if spans else LIKELY, sure=spans is None or spans[0] is not None)

    def shown(self, reading: Reading, passages: Sequence[Document]) -> list[Unit]:
        """What is shown of a reading that has answers."""
        best = reading.answers[0]
        return [best.unit] if reading.exact else nearest(passages[best.passage], best)


def unit_at(passage: Document, start: int, end: int) -> Unit:
    """The unit of a passage that is shown for an answer at some characters."""
    every = all_units(passage)
    around = [unit for unit in every if unit.start < end and unit.end > start]
    unit = max(around, key=lambda one: min(one.end, end) - max(one.start, start), default=None)
    if unit is None:
        text = " ".join(passage.text[start:end].split())
        return Unit(text, "sentence", start, end)
    return _block(every, unit) if unit.kind == "code" else unit


def _block(every: Sequence[Unit], line: Unit) -> Unit:
    """The lines of code around one of them, as one unit."""
    at = every.index(line)
    first, last = at, at
    while first > 0 and every[first - 1].kind == "code" and last - first < _CODE_LINES:
        first -= 1
    while last + 1 < len(every) and every[last + 1].kind == "code" and last - first < _CODE_LINES:
        last += 1
    text = "\n".join(unit.text for unit in every[first : last + 1])
    return Unit(text, "code", every[first].start, every[last].end, line.heading)


def nearest(passage: Document, answer: Answering) -> list[Unit]:
    """The units of a passage around an answer's, at most `_WORDS` words of them, in their order."""
    beside = units_in(passage)
    if answer.unit not in beside:
        return [answer.unit]
    at = beside.index(answer.unit)
    order = sorted(range(len(beside)), key=lambda place: (abs(place - at), place < at))
    fitting = sum(total <= _WORDS for total in accumulate(len(beside[place].text.split()) for place in order))
    return [beside[place] for place in sorted(order[: max(1, fitting)])]


def document_of(hit: Hit) -> Document:
    """A hit as a generator is given it, with its units."""
    return Document(hit.key, hit.text, title_of(hit), units(hit.text, hit.kinds))


def all_units(passage: Document) -> Sequence[Unit]:
    """The units of a passage."""
    return units(passage.text) if passage.parts is None else cast(Sequence[Unit], passage.parts)


def units_in(passage: Document) -> list[Unit]:
    """The units of a passage that can be quoted."""
    return quotable(all_units(passage))


def title_of(hit: Hit) -> str:
    """The title and headings of a hit on one line, in the form that generators and rerankers are given."""
    return " > ".join(line.strip() for line in (hit.context or hit.title).splitlines() if line.strip())


def _shared(question: str, text: str) -> int:
    """The number of the question's content words that a text holds, by stem."""
    return len(set(stems(content_words(question))) & set(stems(content_words(text))))
