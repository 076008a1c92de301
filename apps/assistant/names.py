"""The names and numbers of a question, and whether passages hold them.

"When was invoice 2025-005 paid?" and a passage on invoice 2025-003 are near to each other by their vectors, and for a
reranker, too. A passage without the name or number that a question is about answers another question.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePath

from edge.apps.assistant.grounding import MONTHS, NUMBERS, WEEKDAYS
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem

_TOKEN = re.compile(r"[^\W_]+(?:(?:[-'’]|(?<=\d)[./:,](?=\d))[^\W_]+)*")
_WORD = re.compile(r"[^\W_]+")
_DIGIT = re.compile(r"\d")
_RUN = re.compile(r"\d+|[^\W\d_]+")
_BEGIN = re.compile(r"[.!?:…]\s|\n|[\"“„(]")
"""What stands before the first word of a sentence, which has a capital whatever it means."""

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
        self._words = set(_WORD.findall(self._folded))
        self._stems = {stem(word) for word in self._words}

    def hold(self, name: Name) -> bool:
        """Whether the passage holds a name, regardless of case, accents, endings and small misspellings; an acronym
        also as the initials of words. A word with a digit is held only as it is, regardless of separators."""
        folded = _THOUSANDS.sub("", _fold(name.text))
        if _DIGIT.search(folded):
            number = r"[\W_]{0,2}".join(_RUN.findall(folded))
            spelled = {word for word, value in NUMBERS.items() if value == folded}
            return bool(spelled & self._words or re.search(rf"(?<![^\W_]){number}(?![^\W_])", self._folded))
        parts = _WORD.findall(folded)
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
    nouns = any(word in _GERMAN for word in _WORD.findall(question.casefold()))
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
