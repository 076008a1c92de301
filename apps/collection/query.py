"""`Query`: the parts of a query for BM25, the vectors and the reranker, and what it leaves out. `Names`: how far names
in code are its words. `snippet`: the part of a passage that a result shows, with the places of the query's words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.paths import checked
from edge.apps.store.lexical import FUNCTION_WORDS, bounded_query, plain_word, shown_words
from edge.errors import InputError

_MOST_PARTS = 32

_KINDS = ("lex", "vec", "hyde")
_TYPED = re.compile(rf"\s*(?:{'|'.join(_KINDS)}):", re.IGNORECASE)
BEGINNING = re.compile(r"(?<![^\W_])[^\W_]{3,}\*")
"""The beginning of a word, which stands for every word that begins so."""

_LOOKED_UP = re.compile(rf'\s*(?:(?:"[^"]*"|{BEGINNING.pattern})\s*)+')

_LEFT_OUT = re.compile(
    r"""(?:(?<=\s)|^)(?:-(?=[^\W\d_]|")|(?P<word>(?:AND\s+)?NOT\s+))(?P<what>"[^"]+"|\w[^\s"]+)(?=\s|$)"""
    r"""|"[^"]*\""""
)
"""A word or phrase to leave out (`-word`, `-"a phrase"`, `NOT word`; not `-5`, `--x`, `-x`), or a phrase, in which
nothing is."""

_WORDS = re.compile(r"[^\W_]")
_WORD = re.compile(r"[^\W_]+")
_LONGEST = 60  # Characters before NOT among which a word is looked for.
_PART = re.compile(rf"(?:^|(?<=\s))({'|'.join(_KINDS)}):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A query's words for the full text (only vectors are searched if empty), what no result may hold, texts that are
    embedded as questions and as hypothetical answers (HyDE, Gao et al., 2022), and what the reranker compares with."""

    words: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    asked: str
    without: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parses a plain question, or parts that begin with `lex:`, `vec:` or `hyde:`. A text of phrases in double
        quotes and beginnings of words (`gann*`) alone is searched by words. `-word` and `NOT word` leave passages
        out."""
        if not text.strip():
            raise InputError("the query is empty")
        if not _TYPED.match(text):
            text, without = left_out(text)
            by_words = _LOOKED_UP.fullmatch(text) and _WORDS.search(text)
            return cls(text, () if by_words else (text,), (), text, without)
        if (count := sum(1 for _ in _PART.finditer(text))) > _MOST_PARTS:
            raise InputError(f"the query has too many parts: {count:,}, and it may have {_MOST_PARTS}")
        _, *pieces = _PART.split(text)
        parts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        for kind, value in zip(pieces[::2], pieces[1::2], strict=True):
            if not value.strip():
                raise InputError(f"nothing follows {kind}: in the query")
            parts[kind.lower()].append(value.strip())
        words, without = left_out(" ".join(parts["lex"]))
        asked = parts["vec"] or ([words] if words else parts["hyde"])
        return cls(words, tuple(parts["vec"]), tuple(parts["hyde"]), "\n".join(asked), without)

    def among(self, where: Filters) -> Filters:
        return replace(where, without=(*where.without, *self.without)) if self.without else where

    @property
    def shown(self) -> str:
        return self.words or " ".join((*self.questions, *self.passages))


def left_out(text: str) -> tuple[str, tuple[str, ...]]:
    """A query, and the words, beginnings and phrases that it leaves out. A dash leaves out at the end of a query, and
    anywhere in one of keywords: in a sentence `-name` may be an option. NOT does unless it negates a sentence ("is NOT
    open", "DO NOT ENTER"). A query that leaves out everything is a plain text."""
    found: list[str] = []
    kept: list[str] = []
    sentence = any(word.lower() in FUNCTION_WORDS for word in _LEFT_OUT.sub(" ", text).split())
    end, last = len(text), True
    for match in reversed([match for match in _LEFT_OUT.finditer(text) if match["what"]]):
        last = last and not text[match.end() : end].strip()
        what, before = match["what"], _WORD.findall(text[max(0, match.start() - _LONGEST) : match.start()])
        if match["word"]:
            meant = not before or (
                before[-1].lower() not in FUNCTION_WORDS and not (before[-1].isupper() and what.isupper())
            )
        else:
            meant = last or not sentence
        if meant and any(word.lower() not in FUNCTION_WORDS for word in _WORD.findall(what)):
            found.append(what if what.startswith('"') or what.endswith("*") else f'"{what}"')
            kept.append(text[match.end() : end])
            end = match.start()
    rest = " ".join("".join([text[:end], *reversed(kept)]).split())
    return (rest, tuple(reversed(found))) if found and _WORDS.search(rest) else (text, ())


def checked_query(text: str) -> str:
    return checked(bounded_query(text), "the query")


FILE, FOLDER, DEFINED = 0.2, 0.1, 0.2
"""Weights of the shares of words that the query has: of the file's name, its folder's, and what a passage defines."""

WHOLE, _BEST = 0.3, 3
"""The weight of a file's score, the sum of those of so many of its best passages, relative to the best file's."""

AGAIN = 0.8  # The factor of the score of each further passage of a file of code.

CODE_KIND = "code"
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DEFINED = re.compile(
    r"\b(?:def|class|func|fn|struct|interface|type|module|trait|enum|var|let|const|function|object|record|protocol|impl"
    r"|defmodule|macro)\s+(?:\([^()\n]{0,80}\)\s*)?([A-Za-z_]\w{0,99})"
)

_PAIR = 2  # A name of fewer words counts less: many queries have one of its words by chance.


def mostly_code(hits: Sequence[Hit]) -> bool:
    """Whether a list keeps the order of retrieval, which ranks code better than the reranker does."""
    return sum(hit.kind == CODE_KIND for hit in hits) > len(hits) / 2


def whole_files(scored: Sequence[tuple[float, Hit]]) -> list[float]:
    """The scores, those of code nearer to 1 the higher its file's best passages score together."""
    files: dict[int, list[float]] = {}
    for score, hit in scored:
        if hit.kind == CODE_KIND:
            files.setdefault(hit.file, []).append(score)
    together = {file: sum(sorted(scores)[-_BEST:]) for file, scores in files.items()}
    most = max(together.values(), default=0.0) or 1.0
    return [score + (1 - score) * WHOLE * together.get(hit.file, 0.0) / most for score, hit in scored]


class Names:
    def __init__(self, query: str) -> None:
        self._words = {word for word in _words(query) if word not in FUNCTION_WORDS}

    def raised(self, hit: Hit) -> float:
        """The score of a hit, nearer to 1 the more of the words its names have; unchanged unless it is code."""
        if hit.kind != CODE_KIND or not self._words:
            return hit.score
        *_, folder, file = ("", *re.split(r"[\\/]", hit.path))
        defined = max((self._share(name, _PAIR) for name in _DEFINED.findall(hit.text)), default=0.0)
        bonus = FILE * self._share(file.partition(".")[0]) + FOLDER * self._share(folder) + DEFINED * defined
        return hit.score + (1 - hit.score) * bonus

    def _share(self, name: str, whole: int = 1) -> float:
        """The share of a name's words that the query has; less if these are fewer than `whole`."""
        words = list(_words(name))
        known = sum(word in self._words for word in words)
        return known / len(words) * min(1.0, known / whole) if words else 0.0


def _words(text: str) -> Iterator[str]:
    return (stem(part) for part in _PARTS.findall(text))


SNIPPET_CHARS = 240

_SPACE = re.compile(r"\s+")
_SENTENCE_END = re.compile(
    r"[.!?…][\"'”’)\]*_]{0,4}\s+|[。！？]\s*|\n[ \t]*\n\s*|\n(?=[ \t]*(?:[-*+•]|[0-9]{1,3}[.)])[ \t])"
)
_SENTENCE_LINES = 8  # Lines without the end of a sentence are code or a table.
_SUFFIXES = ("ingly", "edly", "ing", "ies", "ied", "ed", "es", "ly", "s", "e", "y")
_LEAST = 3

_STEMS, _STEM_CHARS = 1000, 40
"""Number and longest length of words whose stems are kept: a longer one may be a whole document without spaces."""


@dataclass(frozen=True, slots=True)
class Snippet:
    text: str
    marks: tuple[tuple[int, int], ...]


def snippet(passage: str, weights: Mapping[str, float]) -> Snippet:
    """The part of a passage with the most weight of query words, each once; its beginning if no word occurs."""
    text = _SPACE.sub(" ", passage).strip()
    wanted = _Wanted(weights)
    words = [(match.start(), match.end(), wanted.form(match[0])) for match in shown_words(text)]
    start, end = _window(text, words, wanted)
    before, after = ("… " if start else ""), (" …" if end < len(text) else "")
    shift = len(before) - start
    marks = tuple((s + shift, e + shift) for s, e, form in words if form in wanted and s >= start and e <= end)
    return Snippet(before + text[start:end] + after, marks)


def best_sentence(passage: str, weights: Mapping[str, float]) -> int:
    """The offset of the sentence (in code, lists and tables, of the line) with the most weight of query words, each
    once."""
    wanted = _Wanted(weights)
    best, best_value, start = 0, 0.0, 0
    ends = [*(match.end() for match in _SENTENCE_END.finditer(passage)), len(passage)]
    for end in ends:
        forms = ((wanted.form(match[0]), match.start()) for match in shown_words(passage, start, end))
        found = {form: at for form, at in forms if form in wanted}
        if (value := sum(wanted[form] for form in found)) > best_value:
            stretch = passage[start:end].rstrip()
            # So many lines without the end of a sentence are code or a table.
            whole = stretch.count("\n") < _SENTENCE_LINES
            begin = start + len(stretch) - len(stretch.lstrip()) if whole else min(found.values())
            best, best_value = begin, value
        start = end
    return best


class _Wanted(dict[str, float]):
    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self._beginnings: list[str] = []
        for word, weight in weights.items():
            key = stem(plain_word(word))
            if len(word) > 1 and word.endswith("*"):
                key = folded(word)
                self._beginnings.append(key)
            self[key] = max(weight, self.get(key, 0.0))

    def form(self, word: str) -> str:
        found = stem(plain_word(word))
        if self._beginnings and found not in self:
            whole = folded(word)
            return next((begun for begun in self._beginnings if whole.startswith(begun[:-1])), found)
        return found


def stems(words: Iterable[str]) -> list[str]:
    return [stem(word) for word in words]


def stem(word: str) -> str:
    """A word without case, accents and the most common English endings, to recognize two forms of one word.

    >>> stem("Flooding") == stem("floods") == "flood"
    True
    """
    return _kept_stem(word) if len(word) <= _STEM_CHARS else _stem(word)


def folded(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(c))


def _stem(word: str) -> str:
    found = folded(word)
    for suffix in _SUFFIXES:
        if found.endswith(suffix) and len(found) - len(suffix) >= _LEAST:
            found = found.removesuffix(suffix)
            break
    # An ending may follow a doubled consonant: `running`, `run`.
    return found[:-1] if len(found) > _LEAST and found[-1] == found[-2] and found[-1] not in "ls" else found


_kept_stem = lru_cache(maxsize=_STEMS)(_stem)


def _window(text: str, words: list[tuple[int, int, str]], wanted: Mapping[str, float]) -> tuple[int, int]:
    if len(text) <= SNIPPET_CHARS:
        return 0, len(text)
    longest = SNIPPET_CHARS - 4
    best, best_value = (0, _cut(text, longest)), 0.0
    found = [i for i, (_, _, form) in enumerate(words) if form in wanted]
    for first in found:
        start = _sentence_start(text, words[first][0], words[first][0] - longest // 3)
        end = _cut(text, start + longest)
        value = sum({words[i][2]: wanted[words[i][2]] for i in found if start <= words[i][0] < end}.values())
        if value > best_value:
            best, best_value = (start, end), value
    return best


def _sentence_start(text: str, position: int, least: int) -> int:
    least = max(0, least)
    for mark in (". ", "! ", "? ", ": ", "; "):
        at = text.rfind(mark, least, position)
        if at >= 0:
            return at + 2
    if least == 0:
        return 0
    space = text.find(" ", least, position)
    return space + 1 if space >= 0 else position


def _cut(text: str, end: int) -> int:
    """The end of the last whole word before `end`; `end` itself if no word ends nearby."""
    if end >= len(text):
        return len(text)
    space = text.rfind(" ", max(0, end - 40), end + 1)
    return space if space > 0 else end
