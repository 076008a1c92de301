"""Snippets: the part of a passage that a result shows, with the places of the query's words in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from edge.apps.store.lexical import plain_word, shown_words

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
            if word.endswith("*"):
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
    """A word without case, accents and the most common English endings, to recognize two forms of one word. >>>
    stem("Flooding") == stem("floods") == "flood" True"""
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
