"""Places of letters on a PDF's page: the spaces of its lines, and its columns. Some programs draw a page row by row,
through all of its columns. The library's lines then go through them, too. They are cut at the gap that many of them
share."""

from __future__ import annotations

import ctypes
import math
import re
import statistics
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_LEAST_GAP = 8.0
"""Points between columns. Spaces of justified lines are narrower."""

_LEAST_ROWS = 5
_LEAST_WORDS = 4
"""The rows with the gap, and the median of their words on each side. Cells of tables are shorter."""

_CONTINUED = 0.25
"""The share of parts that begin with a small letter on each side: text goes on from one to the next. Cells do not."""

_MOST_COLUMNS = 8
_LOOKED_AT = 8
"""Rows that tell whether to look at all of a page."""

_WIDE = re.compile("[\U00010000-\U0010ffff]")
_SPACE = re.compile(r"(?<=\S) +(?=\S)")

_NO_GAP, _WORD_GAP, _LETTER_GAP = 0.05, 0.13, 0.25
"""Shares of the letters' height. A space that the library has added is removed if the distance of the letters is larger
than usual by less than the first one, and a space of the page if it is no larger. One is added if the distance is by
the second one larger. A usual distance is at most the third."""

_MOST_ANGLE = 0.02
"""In radians. Rotated letters are not looked at."""

_LAST_SPACED = "\u058f"
"""The last letter of the scripts whose words are told by their distance: Latin, Greek, Cyrillic and Armenian ones."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A line: its range in the page's text, its edges in points, and its wide gaps (left, right, place of the word
    behind it)."""

    begin: int
    end: int
    left: float
    right: float
    gaps: tuple[tuple[float, float, int], ...]

    def cut(self, x: float) -> tuple[_Row, _Row] | None:
        """The parts beside the gap at `x`; None if there is none."""
        for left, right, place in self.gaps:
            if left < x < right:
                before = tuple(gap for gap in self.gaps if gap[2] < place)
                behind = tuple(gap for gap in self.gaps if gap[2] > place)
                first = _Row(self.begin, place, self.left, left, before)
                return first, _Row(place, self.end, right, self.right, behind)
        return None


def units_of(text_page: Any) -> str:
    """A page's text in UTF-16, as the library counts: a character beyond U+FFFF is two surrogates."""
    return _WIDE.sub(
        lambda match: "".join(map(chr, struct.unpack("<2H", match[0].encode("utf-16-le")))), text_page.get_text_range()
    )


def units_read(text: str) -> str:
    """The text of such units."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def line_ranges(text: str, text_page: Any, raw: Any) -> list[tuple[int, int]]:
    """The ranges of the lines of a page's text that are not empty, in the order of reading, without white space around
    them."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for line in text.split("\n"):
        if line.strip():
            ranges.append((at + len(line) - len(line.lstrip()), at + len(line.rstrip())))
        at += len(line) + 1
    long = [each for each in ranges if text.count(" ", *each) >= 2 * _LEAST_WORDS - 1]
    some = [_row(text, *each, text_page, raw) for each in long[:: len(long) // _LOOKED_AT + 1]]
    if len(long) < _LEAST_ROWS or 2 * sum(bool(row.gaps) for row in some) < len(some):
        return ranges
    rows = [_row(text, *each, text_page, raw) for each in ranges]
    return [(row.begin, row.begin + len(text[row.begin : row.end].rstrip())) for row in _read(rows, text)]


def spaced(text: str, begin: int, end: int, text_page: Any, raw: Any) -> str:
    """The text of a line with spaces where its letters stand apart. The library's own spaces depend on the widths of
    letters, and not on the distance that others in the line have."""
    handle = text_page.raw
    first, last = (raw.FPDFText_GetCharIndexFromTextIndex(handle, place) for place in (begin, end - 1))
    if last - first != end - 1 - begin or abs(raw.FPDFText_GetCharAngle(handle, first)) > _MOST_ANGLE:
        return text[begin:end]
    box, gaps, usual = raw.FS_RECTF(), list[tuple[int, float, float]](), list[float]()
    right, high, drawn = math.inf, 0.0, False
    for at in range(begin, end):
        char, index = text[at], first + at - begin
        if char == " ":
            drawn = drawn or raw.FPDFText_IsGenerated(handle, index) != 1
            continue
        if char > _LAST_SPACED or not raw.FPDFText_GetLooseCharBox(handle, index, box):
            right = math.inf
            continue
        height = max(high, box.top - box.bottom, 1e-3)
        gap = (box.left - right) / height
        if gap > -_LETTER_GAP:
            gaps.append((at, gap, 0.0 if drawn else _NO_GAP))
            if not drawn and gap < _LETTER_GAP:
                usual.append(gap)
        right, high, drawn = box.right, box.top - box.bottom, False
    letters = max(statistics.median_low(usual), 0.0) if usual else 0.0
    pieces, done = [], begin
    for at, gap, none in gaps:
        space = text[at - 1] == " "
        if gap < letters + none if space else gap > letters + _WORD_GAP:
            pieces += [text[done : at - space], "" if space else " "]
            done = at
    return "".join([*pieces, text[done:end]])


def _row(text: str, begin: int, end: int, text_page: Any, raw: Any) -> _Row:
    edges = tuple(ctypes.c_double() for _ in range(4))

    def box(place: int) -> tuple[float, float]:
        index = raw.FPDFText_GetCharIndexFromTextIndex(text_page.raw, place)
        if index < 0 or not raw.FPDFText_GetCharBox(text_page.raw, index, *edges):
            return 0.0, 0.0
        return edges[0].value, edges[1].value

    gaps = []
    for space in _SPACE.finditer(text, begin, end):
        left, right = box(space.start() - 1)[1], box(space.end())[0]
        if right - left >= _LEAST_GAP and left > 0:
            gaps.append((left, right, space.end()))
    return _Row(begin, end, box(begin)[0], box(end - 1)[1], tuple(gaps))


def _read(rows: Sequence[_Row], text: str, most: int = _MOST_COLUMNS) -> list[_Row]:
    """The rows, with those that go through columns cut. Between rows that have no gap, the left parts come first."""
    x = _gutter(rows, text) if most > 1 else None
    if x is None:
        return list(rows)
    found: list[_Row] = []
    sides: tuple[list[_Row], list[_Row]] = ([], [])

    def flush() -> None:
        for side in sides:
            found.extend(_read(side, text, most - 1))
            side.clear()

    for row in rows:
        if (parts := row.cut(x)) is not None:
            for side, part in zip(sides, parts, strict=True):
                side.append(part)
        elif row.left < x < row.right:
            flush()
            found.append(row)
        else:
            sides[row.left >= x].append(row)
    flush()
    return found


def _gutter(rows: Sequence[_Row], text: str) -> float | None:
    """The middle of the gap that most rows share, if there is text on both sides of it."""
    edges = sorted(edge for row in rows for left, right, _ in row.gaps for edge in ((left, 1), (right, -1)))
    here = most = 0
    gutter = 0.0
    for (x, change), (following, _) in pairwise(edges):
        here += change
        if here > most:
            most, gutter = here, (x + following) / 2
    cut = [parts for row in rows if (parts := row.cut(gutter)) is not None]
    through = sum(row.left < gutter < row.right for row in rows)
    if len(cut) < _LEAST_ROWS or 2 * len(cut) < through:
        return None
    for side in zip(*cut, strict=True):
        words = [text[row.begin : row.end] for row in side]
        continued = sum(part[0].islower() for part in words)
        if statistics.median(len(part.split()) for part in words) < _LEAST_WORDS or continued < _CONTINUED * len(words):
            return None
    return gutter
