"""Columns of a PDF's page. Some programs draw a page row by row, through all of its columns. The library's lines then
go through them, too. They are cut at the gap that many of them share."""

from __future__ import annotations

import ctypes
import re
import statistics
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

_SPACE = re.compile(r"(?<=\S) +(?=\S)")


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
