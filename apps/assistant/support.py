"""Where a passage says what an answer states: a line to open, and a sentence to show."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from edge.apps.assistant.prose import continues
from edge.apps.collection.snippets import stem
from edge.runtimes.generation.sentences import spans

QUOTE_CHARS = 240
"""Longest quote, without the ellipsis for what was cut off."""

# Scripts without spaces between words: Thai, Chinese, Japanese. A character stands for a word there.
_UNSPACED = "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})[^\W_])+")

Span = tuple[int, int]


def support(passage: str, statement: str) -> tuple[int, str]:
    """The part of a passage that shares the most words with a statement; of two with as many the shorter one, its
    beginning if none shares any.

    Returns:
        Where the nearest line of that part begins, in characters from the passage's beginning; and the part on one
        line, cut to `QUOTE_CHARS`.
    """
    wanted = set(_stems(statement))
    parts = _parts(passage) or [(0, len(passage))]

    def shared(span: Span) -> int:
        return len(wanted.intersection(_stems(passage[slice(*span)])))

    def worth(span: Span) -> tuple[int, int]:
        both = shared(span)
        return both, -len(_stems(passage[slice(*span)])) if both else 0

    start, end = max(parts, key=worth)
    line, _ = max(_lines(passage, (start, end)), key=shared)
    # What would be cut before the line that counts begins with it.
    quote = " ".join(passage[line if end - start > QUOTE_CHARS else start : end].split())
    return line, _cut(quote)


def _parts(text: str) -> list[Span]:
    """Sentences, and what is none: items of lists, headings, rows. A sentence may go over lines."""
    found: list[Span] = []
    for sentence in spans(text):
        lines = _lines(text, sentence)
        found.append(lines[0])
        for before, line in itertools.pairwise(lines):
            if continues(text[slice(*before)].rstrip(), text[slice(*line)]):
                found[-1] = found[-1][0], line[1]
            else:
                found.append(line)
    return found


def _lines(text: str, span: Span) -> list[Span]:
    """The lines of a part of a text that is not blank, those without text left out."""
    at, found = span[0], []
    for line in text[slice(*span)].split("\n"):
        if line.strip():
            found.append((at, at + len(line)))
        at += len(line) + 1
    return found or [span]


def _cut(quote: str) -> str:
    if len(quote) <= QUOTE_CHARS:
        return quote
    end = quote.rfind(" ", QUOTE_CHARS // 2, QUOTE_CHARS + 1)
    return quote[: end if end >= 0 else QUOTE_CHARS] + " …"


def _stems(text: str) -> Sequence[str]:
    return [stem(word) for word in _WORD.findall(text)]
