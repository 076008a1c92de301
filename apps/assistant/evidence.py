"""Judges whether passages answer a question, by their units: sentences, items, rows and settings.

A cross-encoder's probability for a whole passage mostly tells the passage's subject. It is low for a question worded
differently from its answer, and high for an unanswered question whose subject some passage treats. A small
cross-encoder also prefers short units that fit any question. Units tell more together with their vectors and the
vectors of their words: the unit that answers is nearer to the question than the units around it, and each word of the
question has a near word in its passage. The benchmark `evidence` fits the weight of each signal.

"When was invoice 2025-005 paid?" and a passage on invoice 2025-003 are near to each other by their vectors, and for a
reranker, too. A passage without the name or number that a question is about answers another question (see `Naming`).
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import cast

import numpy as np
import numpy.typing as npt

from edge.apps.assistant.grounding import MONTHS, NUMBERS, WEEKDAYS
from edge.apps.assistant.question import asked_value, content_words, holds_value
from edge.apps.assistant.units import Unit, quotable
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem, stems
from edge.models.evidence import Evidence, load, log_odds
from edge.runtimes.generation.base import Document

Floats = npt.NDArray[np.float32]

_DIGIT = re.compile(r"\d")


class WordNearness:
    """Compares the words of one question with texts, by the vectors of single words.

    A question worded differently from its answer may share no words with it, but each of its words has a near word in
    the answer: a suitcase is a bag, vinegar a household acid. A question about something that the documents do not
    mention has a word with no near word in them. Vectors of whole sentences hide that one word among the others.

    Attributes:
        asked: the question's content words.
    """

    def __init__(self, question: str, floor: float = 0.0) -> None:
        """`floor` is the cosine that counts as 0 (see `edge.models.registry.cosine_floor`)."""
        self.asked = content_words(question)
        self._floor = floor
        self._near: dict[str, Floats] = {}
        self._vectors: Floats | None = None

    def learn(self, texts: Iterable[str], embed: Callable[[Sequence[str]], Floats]) -> None:
        """Embeds the words of some texts that have no vectors yet. `embed` returns unit vectors [n, dim]."""
        new = {word for text in texts for word in content_words(text)} - self._near.keys()
        if not self.asked or not new:
            return
        if self._vectors is None:
            vectors = embed([*self.asked, *sorted(new)])
            self._vectors, vectors = vectors[: len(self.asked)], vectors[len(self.asked) :]
        else:
            vectors = embed(sorted(new))
        self._near |= zip(sorted(new), above(self._floor, vectors @ self._vectors.T), strict=True)

    def nearest(self, text: str) -> Floats:
        """The cosine of each word of the question with its nearest word of a text, counted from the floor.

        The text's words must have been learned with `learn`. The result is all zeros if the text has no content words,
        and a single zero if the question has none.
        """
        rows = [self._near[word] for word in content_words(text) if word in self._near]
        return np.max(rows, axis=0) if rows else np.zeros(max(1, len(self.asked)), np.float32)

    def mean(self, text: str) -> float:
        """The mean of `nearest`, except that a word with a digit is near only to itself: error 409 is not error 400,
        although their vectors are similar."""
        there = set(content_words(text))
        near = self.nearest(text)
        for place, word in enumerate(self.asked):
            if _DIGIT.search(word):
                near[place] = float(word in there)
        return float(near.mean())

    def repeated(self, text: str) -> float:
        """The share of the question's words that occur in a text."""
        there = set(content_words(text))
        return sum(word in there for word in self.asked) / max(1, len(self.asked))


def above(floor: float, cosines: Floats) -> Floats:
    """Cosines counted from a floor, so that those of every embedder have about the same range."""
    return np.asarray((cosines - floor) / (1 - floor), np.float32)


def pair_name(embedder: str) -> str:
    """The name under which the model fitted for an embedder is stored beside a reranker."""
    return f"answers with {embedder}"


SIGNALS = ("passage", "cosine_lead", "least_near", "repeated", "unit", "value", "file_lead")
"""The signals that models are fitted on. Of several lists it was best on the halves `choose` of the benchmarks
`answers` and `household`, with both known embedders.

- passage: the reranker's log-odds for the best passage.
- cosine_lead: the best cosine of a unit, less the mean cosine of the next units.
- least_near: the smallest nearness of a word of the question to the words of the best unit's passage.
- repeated: the share of the question's words that the best unit repeats. A unit that repeats the question without a
  high relevance is often about a similar subject only.
- unit: the reranker's log-odds for the best unit.
- value: of the best unit (see `Window`).
- file_lead: the score of the best unit, less that of the best unit of another file. If two files seem to answer, often
  neither does.
"""

RELEVANCE, COSINE, NEARNESS, LENGTH, VALUE = 0.37, 11.8, 6.9, 0.49, 1.5
"""The weights of a unit's score: of the reranker's log-odds, of its cosine with the question, of the mean nearness of
the question's words, of the logarithm of the unit's number of words, and of the value asked for. They were fitted on
the half `choose` of `edge bench answers`, so that a score is the log-odds that the unit is the answer. The last one was
chosen on it and on the half `choose` of `household`: 1 to 2.5 are alike."""

_NEXT = 5
"""The number of units that the best unit's cosine is compared with."""

_LONGEST_LEAD = 5.0
"""The largest `file_lead`; also that of units which are all of one file."""

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Window:
    """A judged unit.

    Attributes:
        unit: the unit.
        passage: the index of its passage among the judged passages.
        relevance: the reranker's probability that the unit, below its headings, answers the question.
        cosine: the cosine of the unit's vector with the question's, counted from the embedder's floor.
        nearness: the mean over the question's words of the cosine with the nearest word of the unit or its headings.
        repeated: the share of the question's words that occur in the unit or its headings.
        least_near: the smallest cosine of a word of the question with its nearest word in the whole passage.
        value: 1 if the unit holds the kind of value that the question asks for, -1 if not; 0 if it asks for none.
    """

    unit: Unit
    passage: int
    relevance: float
    cosine: float
    nearness: float = 0.0
    repeated: float = 0.0
    least_near: float = 0.0
    value: int = 0

    @property
    def score(self) -> float:
        """The score by which units are compared, in log-odds."""
        near = COSINE * self.cosine + NEARNESS * self.nearness
        words = math.log1p(len(self.unit.text.split()))
        return RELEVANCE * log_odds(self.relevance) + near + LENGTH * words + VALUE * max(0, self.value)


WORD = re.compile(r"[^\W_]+")
FEW_WORDS = 4

_LEANING = re.compile(r"(?:it|its|this|that|these|those|they|their|he|his|she|her|such|however|also|so|then)\b", re.I)
"""The first word of a sentence that depends on the sentence before it."""

_QUESTION, _FRAGMENT, _LEANS = 1.0, 0.7, 0.2
"""Log-odds subtracted from questions, from fragments, and from sentences that depend on the one before. They answer
less well than their scores suggest."""


def standing(window: Window) -> float:
    """The score of a unit as a statement that stands alone, in log-odds."""
    text, score = window.unit.text, window.score
    if text.endswith("?"):
        score -= _QUESTION
    if window.unit.kind == "sentence" and len(WORD.findall(text)) < FEW_WORDS:
        score -= _FRAGMENT
    if _LEANING.match(text):
        score -= _LEANS
    return score


@dataclass(frozen=True, slots=True)
class UnitReading:
    """The evidence of passages' units about a question.

    Attributes:
        signals: the values of `SIGNALS` for all passages.
        named: the same for the passages that hold the names of the question. A passage on something else can make all
            look better, and so can its absence.
        most: the most that the passages can be likely to answer the question (see `Naming.most`).
    """

    signals: tuple[float, ...]
    named: tuple[float, ...]
    most: float = 1.0

    def probability(self, fitted: Evidence) -> float:
        """The probability that the best quotation of the passages answers the question."""
        return min(self.most, *map(fitted.probability, (self.signals, self.named)))


class UnitJudge:
    """Judges the units of passages with a collection's models. Thread-safe.

    It caches the last judgements, because the same units are judged twice: to decide whether there is an answer, and to
    pick the sentences of that answer.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.RLock()
        self._question = ""
        self._known: dict[str, tuple[float, float]] = {}
        self._words = WordNearness("")
        self._unnamed: set[str] = set()
        self._doubted: dict[str, bool] = {}

    def windows(self, question: str, passages: Sequence[Document]) -> list[Window]:
        """The judged units of passages (see `document_of`), in their order. There are none of passages that `reading`
        found to lack the names of the same question.

        Raises:
            The errors of `Collection.search`.
        """
        with self._lock:
            self._begin(question)
            found = [
                (number, unit, below_headings(passage.title, unit))
                for number, passage in enumerate(passages)
                if passage.text not in self._unnamed
                for unit in _units_in(passage)
            ]
            missing = list(dict.fromkeys(text for _, _, text in found if text not in self._known))
            if missing:
                vectors = self._collection.embed_queries([question, *missing])
                cosines = above(self._collection.models.floor(), vectors[1:] @ vectors[0])
                relevance = self._collection.relevance(question, missing)
                self._known |= zip(missing, zip(relevance, map(float, cosines), strict=True), strict=True)
            whole, words = [f"{passage.title}\n{passage.text}" for passage in passages], self._words
            words.learn((*whole, *(text for _, _, text in found)), self._collection.embed_queries)
            least = [float(words.nearest(text).min()) for text in whole]
            kind = asked_value(question)
            return [
                Window(
                    unit, number, *self._known[text], words.mean(text), words.repeated(text), least[number],
                    0 if kind is None else 1 if holds_value(kind, unit.text) else -1,
                )
                for number, unit, text in found
            ]  # fmt: skip

    def _begin(self, question: str) -> None:
        if self._question != question:
            self._unnamed = set()
        if self._question != question or len(self._known) > _REMEMBERED:
            self._question, self._known = question, {}
            self._words = WordNearness(question, self._collection.models.floor())

    def probability(self, question: str, hits: Sequence[Hit]) -> tuple[float, float, float] | None:
        """The probability that hits answer a question, the one that is enough, and the one that is certain; None if no
        model was fitted for the embedder and reranker in use. Raises the errors of `windows`."""
        name = pair_name(self._collection.embedder.model.name)
        fitted = load(self._collection.reranker.model, name, SIGNALS)
        if fitted is None or not hits:
            return None
        found = self.reading(question, hits).probability(fitted)
        with self._lock:
            if len(self._doubted) >= _REMEMBERED:
                self._doubted = {}
            self._doubted[question] = found < fitted.certain
        return found, fitted.threshold, fitted.certain

    def doubts(self, question: str) -> bool:
        """Whether the passages last judged for a question may well not answer it."""
        return self._doubted.get(question, False)

    def reading(self, question: str, hits: Sequence[Hit]) -> UnitReading:
        """The evidence of some hits' units about a question. Raises the errors of `windows`."""
        naming = Naming(question, hits)
        with self._lock:  # a judgement of another question in between would forget the unnamed passages
            self._begin(question)
            self._unnamed = set()
            windows = self.windows(question, [document_of(hit) for hit in hits])
            self._unnamed = {hit.text for hit in hits} - {hit.text for hit in naming.hits}
            named = self.windows(question, [document_of(hit) for hit in naming.hits])
        best = max(named, key=lambda window: window.score, default=None)
        most = 1.0 if best is None else naming.most(naming.hits[best.passage])
        return UnitReading(tuple(signals(windows, hits)), tuple(signals(named, naming.hits)), most)


def signals(windows: Sequence[Window], hits: Sequence[Hit]) -> list[float]:
    """The values of `SIGNALS` for the judged units of some hits. Without units, the values mean "no answer"."""
    if not windows:
        return [log_odds(0.0), 0.0, 0.0, 0.0, log_odds(0.0), -1.0, 0.0]
    best = max(windows, key=lambda window: window.score)
    cosines = sorted((window.cosine for window in windows), reverse=True)
    others = [window.score for window in windows if hits[window.passage].file != hits[best.passage].file]
    return [
        log_odds(max(hit.stages.reranker or 0.0 for hit in hits)),
        float(cosines[0] - np.mean(cosines[1 : 1 + _NEXT])) if len(cosines) > 1 else 0.0,
        best.least_near,
        best.repeated,
        log_odds(best.relevance),
        float(best.value),
        min(_LONGEST_LEAD, best.score - max(others, default=-math.inf)),
    ]


def document_of(hit: Hit) -> Document:
    """A hit as a generator is given it, with its units that can be quoted."""
    return Document(hit.key, hit.text, title_of(hit), quotable(hit.text, hit.kinds))


def _units_in(passage: Document) -> Sequence[Unit]:
    return quotable(passage.text) if passage.parts is None else cast(Sequence[Unit], passage.parts)


def title_of(hit: Hit) -> str:
    """The title and headings of a hit on one line, in the form that generators and rerankers are given."""
    return " > ".join(line.strip() for line in (hit.context or hit.title).splitlines() if line.strip())


def below_headings(title: str, unit: Unit) -> str:
    """The text by which a unit is judged: the title of its document and its headings, then the unit."""
    above = title if unit.heading in ("", title) or title.endswith(unit.heading) else f"{title} > {unit.heading}"
    return f"{above}\n{unit.text}" if above else unit.text


_TOKEN = re.compile(r"[^\W_]+(?:(?:[-'’]|(?<=\d)[./:,](?=\d))[^\W_]+)*")
_RUN = re.compile(r"\d+|[^\W\d_]+")
_BEGIN = re.compile(r"[.!?:…]\s|\n|[\"“„(]")
"""The text before the first word of a sentence. This word has a capital whether it is a name or not."""

_THOUSANDS = re.compile(r"(?<=\d)[,.](?=\d{3}(?!\d))")
_POSSESSIVE = re.compile(r"['’]s?$")
_WITHIN_SENTENCE = re.compile(r"(?<=[a-zß-ÿ,;] )[A-Z][\w'’-]+")
_LOWER = re.compile(r"(?<![^\W_])[^\W\d_A-Z][^\W_]*")
_SMALL = re.compile(r"\d{1,2}")
_ACRONYM = re.compile(r"[A-Z]{2,4}")
_CAPITAL = re.compile(r"\b[A-Z](?=\w)")

_GERMAN = frozenset({
    "der", "die", "das", "den", "dem", "des", "ein", "eine", "einen", "ist", "sind", "hat", "wie", "was", "wer", "wann",
    "wo", "welche", "welcher", "welches", "und", "nicht",
})  # fmt: skip
"""German function words. In a German question every noun has a capital."""

_NO_NAMES = frozenset({*WEEKDAYS, "mr", "mrs", "ms", "dr", "prof", "frau", "herr", "i'm", "i've", "i'd", "i'll"})

ELSEWHERE, NOWHERE = 0.4, 0.1
"""The most that passages can be likely to answer a question if the best one lacks one of its names, and if all lack at
least half of its sure names. An answer is shown with a warning at the first, and refused at the second."""

_FOLDERS = 1
"""Names are looked for in a file's name and in the names of so many folders above it. The folders further up are the
same for most files, such as the user's own."""

_SIMILAR, _LONG = 0.8, 5
"""Names of at least `_LONG` letters that are so similar, or of which one holds the other, may be one name: Genghis and
Ghengis, Steuererklärung and Erklärung."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name or number of a question.

    Attributes:
        text: the name, without a possessive ending.
        sure: whether the word can be nothing but a name or an identifier. Small numbers may be spelled or counted in
            another way, acronyms may be written out, German nouns all have capitals, and people type names in lower
            case.
    """

    text: str
    sure: bool


class Words:
    """The words of a passage, to look for names in."""

    def __init__(self, text: str) -> None:
        self._initials = "".join(_CAPITAL.findall(text))
        self._folded = _THOUSANDS.sub("", _fold(text))
        self._words = set(WORD.findall(self._folded))
        self._stems = set(stems(self._words))

    def hold(self, name: Name) -> bool:
        """Whether the passage holds a name, regardless of case, accents, endings and small misspellings; an acronym
        also as the initials of words. A word with a digit is held only as it is, regardless of separators."""
        folded = _THOUSANDS.sub("", _fold(name.text))
        if _DIGIT.search(folded):
            number = r"[\W_]{0,2}".join(_RUN.findall(folded))
            spelled = {word for word, value in NUMBERS.items() if value == folded}
            return bool(spelled & self._words or re.search(rf"(?<![^\W_]){number}(?![^\W_])", self._folded))
        parts = WORD.findall(folded)
        if all(map(self._holds_word, parts)) or "".join(parts) in self._words:
            return True
        return _ACRONYM.fullmatch(name.text) is not None and name.text in self._initials

    def _holds_word(self, word: str) -> bool:
        if word in self._words or stem(word) in self._stems:
            return True
        return len(word) >= _LONG and any(len(other) >= _LONG and _alike(word, other) for other in self._words)


class Naming:
    """Which hits hold the names of a question. Passages of one file are read together: a later one may take up a name
    that only the first one holds.

    Attributes:
        hits: the hits that lack the fewest sure names. The others are about something else.
    """

    def __init__(self, question: str, hits: Sequence[Hit]) -> None:
        texts: dict[int, str] = defaultdict(str)
        for hit in hits:
            place = "\n".join(PurePath(hit.path).parts[-1 - _FOLDERS :])
            texts[hit.file] += f"{place}\n{hit.title}\n{hit.context}\n{hit.text}\n"
        self._names = names_of(question, list(texts.values()))
        words = {file: Words(text) for file, text in texts.items()}
        self._lacking = {file: [name for name in self._names if not words[file].hold(name)] for file in texts}
        sure = {file: sum(name.sure for name in lacking) for file, lacking in self._lacking.items()}
        self.hits = [hit for hit in hits if sure[hit.file] == min(sure.values())]

    def most(self, hit: Hit) -> float:
        """The most that the hits can be likely to answer the question if `hit` is the best of them."""
        nowhere = [name for name in self._names if name.sure and all(name in lack for lack in self._lacking.values())]
        if nowhere and 2 * len(nowhere) >= sum(name.sure for name in self._names):
            return NOWHERE
        return ELSEWHERE if self._lacking[hit.file] else 1.0


def names_of(question: str, passages: Sequence[str]) -> list[Name]:
    """The names and numbers of a question: words with a digit, words with a capital inside a sentence, and words that
    the passages write with a capital only.

    >>> [name.text for name in names_of("When was invoice 2025-005 of Ada's paid?", [])]
    ['2025-005', 'Ada']
    """
    found: dict[str, Name] = {}
    capitals = _only_capitals(passages)
    nouns = any(word in _GERMAN for word in WORD.findall(question.casefold()))
    last, first = 0, True
    for match in _TOKEN.finditer(question):
        first = first or _BEGIN.search(question, last, match.start()) is not None
        last, text = match.end(), _POSSESSIVE.sub("", match[0])
        folded = _fold(text)
        if folded in _NO_NAMES or match[0].casefold() in _NO_NAMES:
            continue
        if _DIGIT.search(text):
            found[folded] = Name(text, not _SMALL.fullmatch(text))
        elif not first and len(text) > 1 and text[0].isupper() and not question.istitle() and not question.isupper():
            sure = not nouns and not _ACRONYM.fullmatch(text) and folded not in MONTHS
            found[folded] = Name(text, sure)
        elif folded in capitals:
            found.setdefault(folded, Name(text, sure=False))
        first = False
    return list(found.values())


def _only_capitals(passages: Sequence[str]) -> set[str]:
    """The words that passages write with a capital inside sentences, and nowhere without."""
    capitals = {_fold(_POSSESSIVE.sub("", word)) for text in passages for word in _WITHIN_SENTENCE.findall(text)}
    return capitals - {_fold(word) for text in passages for word in _LOWER.findall(text)}


def _alike(word: str, other: str) -> bool:
    if word in other or other in word:
        return True
    near = abs(len(word) - len(other)) <= 2
    return near and SequenceMatcher(None, word, other).ratio() >= _SIMILAR


def _fold(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))
