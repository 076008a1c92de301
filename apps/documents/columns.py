"""Places of letters on a PDF's page: the spaces of its lines, and its columns. Lines that the library draws through all
columns of a page are cut at the gap that many of them share."""

from __future__ import annotations

import ctypes
import math
import re
import statistics
import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

_LEAST_GAP = 8.0  # Points between columns. Spaces of justified lines are narrower.
_LEAST_ROWS = 5
_LEAST_WORDS = 4  # Rows with the gap, and the median of their words on each side. Cells of tables are shorter.
_CONTINUED = 0.25  # The share of parts that begin with a small letter on each side. Cells do not.
_MOST_COLUMNS = 8
_LOOKED_AT = 4

_SPREAD = 0.35

_FILL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_WIDE = re.compile("[\U00010000-\U0010ffff]")
_SPACE = re.compile(r"(?<=\S) +(?=\S)")

_NO_GAP, _WORD_GAP, _LETTER_GAP, _OVERLAP = 0.05, 0.13, 0.25, 0.5
"""Shares of the letters' height, for spaces beyond the usual distance of letters: to keep one of the library (one of
the page needs none), and to add one. A usual distance is at most the third, and letters may overlap by the fourth."""

_MOST_ANGLE = 0.02  # In radians. Rotated letters are not looked at.
_LAST_SPACED = "\u058f"
"""The last letter of Latin, Greek, Cyrillic and Armenian, whose words are told by their distance."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A line: its range in the page's text, its edges in points, and its wide gaps (left, right, place of the next
    word)."""

    begin: int
    end: int
    left: float
    right: float
    gaps: tuple[tuple[float, float, int], ...]

    def cut(self, x: float) -> tuple[_Row, _Row] | None:
        for left, right, place in self.gaps:
            if left < x < right:
                before = tuple(gap for gap in self.gaps if gap[2] < place)
                behind = tuple(gap for gap in self.gaps if gap[2] > place)
                first = _Row(self.begin, place, self.left, left, before)
                return first, _Row(place, self.end, right, self.right, behind)
        return None


class PageText:
    """The text of a page (in UTF-16, as the library counts: two surrogates beyond U+FFFF), with the boxes of its
    letters."""

    def __init__(self, text_page: Any, raw: Any) -> None:
        self._raw, self.handle = raw, text_page.raw
        shown = text_page.get_text_range()
        self.text = _WIDE.sub(
            lambda match: "".join(map(chr, struct.unpack("<2H", match[0].encode("utf-16-le")))), shown
        )
        self._is_wide, self._is_whole, last = len(self.text) > len(shown), False, len(self.text) - 1
        self._is_whole = last >= 0 and self.letter(0) == 0 and self.letter(last) == last
        # Without conversions of the arguments, a call takes an eighth of the time.
        self._fill = ctypes.cast(raw.FPDFText_GetLooseCharBox, _FILL)
        self._page = ctypes.cast(self.handle, ctypes.c_void_p).value

    def read(self, begin: int, end: int | None = None) -> str:
        text = self.text[begin:end]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if self._is_wide else text

    def letter(self, place: int) -> int:
        """Negative if there is none."""
        if self._is_whole:  # it has all letters of the page
            return place
        number: int = self._raw.FPDFText_GetCharIndexFromTextIndex(self.handle, place)
        return number

    def lines(self) -> Iterator[tuple[int, int, str]]:
        """The lines that are not empty, in the order of reading: their ranges, and their text with spaces where letters
        stand apart. All lines are looked at only if one of a few has other spaces."""
        ranges: list[tuple[int, int]] = []
        at = 0
        for line in self.text.split("\n"):
            if line.strip():
                ranges.append((at + len(line) - len(line.lstrip()), at + len(line.rstrip())))
            at += len(line) + 1
        long = [each for each in ranges if self.text.count(" ", *each) >= 2 * _LEAST_WORDS - 1]
        some = long if len(long) >= _LEAST_ROWS else ranges
        looked_at = some[:: len(some) // _LOOKED_AT + 1]
        apart = any(self._spaced(*each) != self.read(*each) for each in looked_at)
        if some is long and 2 * sum(bool(self._row(*each).gaps) for each in looked_at) >= len(looked_at):
            rows = _read([self._row(*each) for each in ranges], self.text)
            ranges = [(row.begin, row.begin + len(self.text[row.begin : row.end].rstrip())) for row in rows]
        for begin, end in ranges:
            text = self.read(begin, end)
            if apart or text.count(" ") > _SPREAD * len(text):
                text = self._spaced(begin, end)
            yield begin, end, text

    def boxes(self, letters: Sequence[int]) -> tuple[list[float], ...]:
        """Left, top, right and bottom edges."""
        boxes, size = (self._raw.FS_RECTF * len(letters))(), ctypes.sizeof(self._raw.FS_RECTF)
        here = ctypes.addressof(boxes)
        deque(map(self._fill, repeat(self._page), letters, range(here, here + len(letters) * size, size)), 0)
        edges = array("f", bytes(boxes)).tolist()
        return tuple(edges[side::4] for side in range(4))

    def _spaced(self, begin: int, end: int) -> str:
        """The text of a line with spaces where its letters stand apart, by the distance that others in the line
        have."""
        first, last = self.letter(begin), self.letter(end - 1)
        if last - first != end - 1 - begin or abs(self._raw.FPDFText_GetCharAngle(self.handle, first)) > _MOST_ANGLE:
            return self.read(begin, end)
        boxes = self.boxes(range(first, last + 1))
        gaps, usual = list[tuple[int, float, bool]](), list[float]()
        far, high, drawn = math.inf, 0.0, False
        for at, char, left, top, right, bottom in zip(range(begin, end), self.text[begin:end], *boxes, strict=True):
            if char == " ":
                drawn = drawn or right > left  # a space that the library has added has no width
                continue
            height = top - bottom
            gap = (left - far) / max(high, height, 1e-3)
            if gap > -_OVERLAP and char <= _LAST_SPACED:
                gaps.append((at, gap, drawn))
                if not drawn and gap < _LETTER_GAP:
                    usual.append(gap)
            far, high, drawn = (right if char <= _LAST_SPACED else math.inf), height, False
        letters = statistics.median_low(usual) if usual else 0.0
        pieces, done = [], begin
        for at, gap, drawn in gaps:
            space = self.text[at - 1] == " "
            if gap < (letters if drawn else letters + _NO_GAP) if space else gap > max(letters, 0.0) + _WORD_GAP:
                pieces += [self.read(done, at - space), "" if space else " "]
                done = at
        return "".join([*pieces, self.read(done, end)])

    def _row(self, begin: int, end: int) -> _Row:
        spaces = [match.span() for match in _SPACE.finditer(self.text, begin, end)]
        places = [begin, *(place for before, behind in spaces for place in (before - 1, behind)), end - 1]
        lefts, _, rights, _ = self.boxes([self.letter(place) for place in places])
        gaps = zip(rights[1::2], lefts[2::2], (behind for _, behind in spaces), strict=False)
        wide = tuple(gap for gap in gaps if gap[1] - gap[0] >= _LEAST_GAP and gap[0] > 0)
        return _Row(begin, end, lefts[0], rights[-1], wide)


def _read(rows: Sequence[_Row], text: str, most: int = _MOST_COLUMNS) -> list[_Row]:
    """With rows that go through columns cut. Between rows without a gap, the left parts come first."""
    x = _gutter(rows, text) if most > 1 and len(rows) >= _LEAST_ROWS else None
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
