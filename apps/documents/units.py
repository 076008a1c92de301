"""Splits blocks into the smallest units between which chunks may be cut: sentences, lines, and parts of long ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from edge.apps.documents.base import Block
from edge.text.sentences import boundaries

_WORD = re.compile("[A-Za-z]{1,24}")
_DIGITS = re.compile("[0-9]{1,24}")
_SINGLE = re.compile("[!-/:-@\\[-`{-~]|[^\\x00-\\x7f]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_ACCENTED = re.compile("[\u00c0-\u024f]")
_WORD_PIECES = [0.0] + [1.0 + 0.12 * min(max(n - 3, 0), 7) + 0.5 * max(n - 10, 0) for n in range(1, 25)]
_DIGIT_PIECES = [0.0] + [max(1.0, 0.5 * n) for n in range(1, 25)]

MOST_PER_CHARACTER = 3
"""The most pieces per character of any text."""


def estimate_pieces(text: str) -> float:
    """The word pieces of a text, estimated without a tokenizer, cheaply enough for every sentence. The estimate is
    additive over texts that are cut at white space.

    The rule is fitted to the 30,000-piece vocabularies of BERT models on English prose, source code, HTML and JSON. A
    word of up to three letters is one piece; each further letter adds 0.12 pieces up to the tenth, and 0.5 beyond. A
    digit is half a piece. Punctuation and every letter outside ASCII are one piece. Accented Latin letters count three,
    because the words around them are split more often, too. Hangul syllables count two, because they are decomposed
    into letters.
    """
    pieces = (
        sum(map(_WORD_PIECES.__getitem__, map(len, _WORD.findall(text))))
        + sum(map(_DIGIT_PIECES.__getitem__, map(len, _DIGITS.findall(text))))
        + len(_SINGLE.findall(text))
    )
    if not text.isascii():
        pieces += len(_HANGUL.findall(text)) + 2 * len(_ACCENTED.findall(text))
    return pieces


BREAK_SECTION = 0.0
BREAK_BLOCK = 0.1
BREAK_ITEM = 0.15
BREAK_SENTENCE = 0.3
BREAK_LINE = 0.4
BREAK_INSIDE_LINES = 0.8
BREAK_INSIDE = 1.5
BREAK_WORD = 3.0
BREAK_AFTER_HEADING = 3.0
"""Costs of cuts, on the scale of `chunking`, where a half-empty chunk costs 0.25."""

_WORD_CUT = 1.5
"""Factor for the parts of a long word that is cut: their word pieces may be so many times the estimate."""

_SHORT = 1 / 16
_SHORT_CHARACTERS = 0.5
"""A block of lines is not cut if it takes at most the share `_SHORT` of a chunk. Its word pieces are counted only if it
has at most `_SHORT_CHARACTERS` characters per piece of the chunk."""

_BREAK_INDENT = 0.05
_MOST_INDENT = 8

_ITEM = re.compile("\n(?=[ \t]*(?:[-*+•‣·]|\\(?(?:[0-9]{1,3}|[a-zA-Z])[.)])[ \t])")
_WORDS = re.compile("\\S+\\s*|\\s+")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a block.

    Attributes:
        block: index of the block.
        start, end: range of characters in the block's text, including white space at the end.
        pieces: estimated word pieces.
        cost: cost of a cut before the unit.
        first, last: index of the first and last line of the block's text on which the unit has visible characters.
    """

    block: int
    start: int
    end: int
    pieces: float
    cost: float
    first: int
    last: int


def units_of(block: Block, index: int, most: float) -> Iterator[Unit]:
    """Splits a block into units of at most `most` word pieces. Units without a visible character are left out. The
    others cover every visible character of the block exactly once, in order."""
    text = block.text
    if block.kind == "lines" and len(text) <= most * _SHORT_CHARACTERS and text.strip():
        pieces = estimate_pieces(text)
        if pieces <= most * _SHORT:  # a fast path for the rows of very long tables
            begin = len(text) - len(text.lstrip())
            yield Unit(index, 0, len(text), pieces, BREAK_BLOCK, text.count("\n", 0, begin), text.rstrip().count("\n"))
            return
    cuts = _sentences(text) if block.kind == "prose" else _lines(text) if block.kind == "lines" else iter(())
    start, cost, line = 0, BREAK_BLOCK, 0
    for end, next_cost in _with_end(cuts, len(text)):
        for a, b, pieces, inner in _shortened(text, start, end, most):
            visible = text[a:b].lstrip()
            begin = b - len(visible)
            first = line + text.count("\n", a, begin)
            last = first + visible.rstrip().count("\n")
            if visible:
                yield Unit(index, a, b, pieces, inner or cost, first, last)
            line += text.count("\n", a, b)
        start, cost = end, next_cost


def _with_end(cuts: Iterator[tuple[int, float]], length: int) -> Iterator[tuple[int, float]]:
    yield from cuts
    yield length, 0.0


def _sentences(text: str) -> Iterator[tuple[int, float]]:
    """Offsets of sentences and list items, with the cost of a cut before each."""
    items = {match.end() for match in _ITEM.finditer(text)}
    begins = {begin for _, begin in boundaries(text) if begin < len(text)}
    for start in sorted(items | begins):
        yield start, BREAK_ITEM if start in items else BREAK_SENTENCE


def _lines(text: str) -> Iterator[tuple[int, float]]:
    """Offsets of lines, with the cost of a cut before each: low after a blank line, high before an indented line."""
    position, blank = 0, False
    for line in text.split("\n"):
        stripped = line.lstrip()
        if stripped and position:
            indent = min(_MOST_INDENT, len(line[: len(line) - len(stripped)].expandtabs(4)))
            closing = stripped[0] in ")]}"
            yield position, (0.15 if blank else BREAK_LINE) + _BREAK_INDENT * indent + (0.4 if closing else 0.0)
        blank = not stripped
        position += len(line) + 1


def _shortened(text: str, start: int, end: int, most: float) -> Iterator[tuple[int, int, float, float]]:
    """Splits a range that may be too long into ranges of at most `most` word pieces: (start, end, word pieces, cost of
    a cut before it, 0 for the first). Prefers cuts between lines, then between words. The ranges are quarters of
    `most`, because these fill chunks better."""
    pieces = estimate_pieces(text[start:end])
    if pieces <= most:
        yield start, end, pieces, 0.0
        return
    part = most / 4
    at, size, cost = start, 0.0, 0.0
    for word in _WORDS.finditer(text, start, end):
        pieces = estimate_pieces(word[0])
        line_began = word.start() > start and text[word.start() - 1] == "\n"
        if at < word.start() and (size + pieces > part or (line_began and size > part / 2)):
            yield at, word.start(), size, cost
            at, size = word.start(), 0.0
            cost = BREAK_INSIDE_LINES if line_began else BREAK_INSIDE
        size += pieces
        if pieces > part:
            step = max(1, int(part / MOST_PER_CHARACTER))
            for cut in range(word.start() + step, word.end(), step):
                yield at, cut, _WORD_CUT * estimate_pieces(text[at:cut]), cost
                at, cost = cut, BREAK_WORD
            size = _WORD_CUT * estimate_pieces(text[at : word.end()])
    yield at, end, size, cost
