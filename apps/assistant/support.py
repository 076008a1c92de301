"""Where a passage says what an answer states: a line to open, and a sentence to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from edge.apps.assistant.layout import units
from edge.apps.assistant.units import Unit
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem

QUOTE_CHARS = 240
"""Longest quote, without the ellipsis for what was cut off."""

_QUOTED_LINES = 3
"""Lines of a file that a quote is looked for on."""

_LONGEST_FILE = 4 << 20
"""Bytes of a file in which a line is looked for."""

# Scripts without spaces between words: Thai, Chinese, Japanese. A character stands for a word there.
_UNSPACED = "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})[^\W_])+")

Span = tuple[int, int]


def support(passage: str, statement: str) -> tuple[int, str]:
    """The part of a passage that shares the most words with a statement; of two with as many the shorter one, its
    beginning if none shares any. A part that the statement quotes word for word comes before all others.

    Returns:
        Where the nearest line of that part begins, in characters from the passage's beginning; and the part on one
        line, cut to `QUOTE_CHARS`.
    """
    wanted = set(_stems(statement))
    quoted = " ".join(statement.split())
    parts = _parts(passage) or [Unit(" ".join(passage.split()), "sentence", 0, len(passage))]

    def worth(unit: Unit) -> tuple[bool, int, int]:
        own = _stems(f"{unit.text} {passage[unit.start : unit.end]}")
        both = len(wanted.intersection(own))
        return len(own) > 1 and unit.text in quoted, both, -len(own) if both else 0

    best = max(parts, key=worth)
    if best.kind == "row":
        return _line_start(passage, best.start), _cut(best.text)
    lines = _lines(passage, (best.start, best.end))
    line, _ = lines[0] if best.text in quoted else max(lines, key=lambda span: _shared(wanted, passage[slice(*span)]))
    # What would be cut before the line that counts begins with it.
    quote = best.text if best.end - best.start <= QUOTE_CHARS else " ".join(passage[line : best.end].split())
    return line, _cut(quote)


def line_of(hit: Hit, at: int, quote: str) -> int:
    """The line of a hit's file that the character `at` of its text stands on, from 1. A text that was laid out anew
    does not have the file's lines: they are looked through for the quote then, and if the file cannot be read the line
    is estimated from the place in the text."""
    lines, height = hit.text.count("\n"), hit.line_end - hit.line_start
    above = hit.text.count("\n", 0, at)
    if lines == height:
        return hit.line_start + above
    guess = hit.line_start + round(above * height / max(1, lines))
    stems = list(_stems(quote))
    lines_there = _file_lines(hit.path, hit.line_start, hit.line_end) if hit.page is None else ()
    found = []
    for number, line in enumerate(lines_there):
        if stems and stems[0] in _stems(line):  # where the quote may begin
            share = _shared(set(stems), " ".join(lines_there[number : number + _QUOTED_LINES]))
            found.append((share, -abs(hit.line_start + number - guess), hit.line_start + number))
    share, _, line_found = max(found, default=(0, 0, guess))
    # With fewer words in common the file has changed, or its text is written in another way.
    return line_found if share * 2 >= len(set(stems)) else guess


def _file_lines(path: str, first: int, last: int) -> Sequence[str]:
    """Lines of a file; none if it is not there or is too large."""
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _LONGEST_FILE:
            return ()
        text = file.read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ()
    return re.split(r"\r\n|\r|\n", text)[first - 1 : last]


@lru_cache(maxsize=16)
def _parts(text: str) -> tuple[Unit, ...]:
    """The parts of a passage that can be cited: of a long item or docstring its sentences."""
    return tuple(unit for unit in units(text) if unit.kind != "navigation")


def _shared(wanted: set[str], text: str) -> int:
    return len(wanted.intersection(_stems(text)))


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


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
