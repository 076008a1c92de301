"""Splits blocks into chunks: passages with a limited number of word pieces that begin and end at natural boundaries.

The best cuts are a shortest path over all units of a page. Each chunk costs the square of its unused share, each cut
has the cost of its unit, and each boundary between sections inside a chunk costs more the higher it is in the
outline. So small neighbours are merged, long sections are cut into equal parts, and a sentence is cut only if it is
longer than a chunk. Chunks do not overlap, and no visible character of a document is lost, except in blocks of encoded
bytes (base64, hexadecimal).
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from edge.apps.documents.base import Block, Chunk, counts_up
from edge.apps.documents.kinds import NOTHING, Part, packed_parts, parts_of
from edge.text.sentences import boundaries

MAX_TOKENS = 220
"""Estimated word pieces of a chunk with context. Embedders truncate at 256; the estimate may be a sixth too low."""

_CONTEXT_SHARE = 4
_NAME_CHARS = 80
_MIXED_TOP = 0.8
_MIXED_SIBLING = 0.35
_BETWEEN = " > "
_MOST_UNITS = 20_000
"""Units that are cut together. A longer page, such as a huge table, is cut in parts to bound the memory."""

HEADINGS = frozenset({"heading", "columns"})
_BY_SENTENCES = frozenset({"prose", "paragraph", "item"})
_BY_LINES = frozenset({"lines", "row", "table", "code", "settings", "fields"})
"""Kinds of blocks that are not cut, are cut between sentences, and are cut between lines."""

_LEAST_ENCODED, _MOST_SPACES, _ENCODED_SHARE = 200, 50, 0.8
_ENCODED = re.compile(r"^(?=[^\d\n]*\d)[A-Za-z0-9+/_-]{40,}={0,2}$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")


def chunks_of(blocks: Iterable[Block], title: str, *, max_tokens: int = MAX_TOKENS) -> Iterator[Chunk]:
    contexts = _Contexts(title, max_tokens // _CONTEXT_SHARE)
    parts = _PartsOfBlocks()
    texts = (block for block in blocks if not _is_encoded(block.text))
    for page, blocks_of_page in groupby(texts, lambda block: block.page):
        for stretch, units, rooms in _stretches(blocks_of_page, contexts, max_tokens):
            for first, end in _cut(stretch, units, rooms):
                yield _chunk(stretch, units[first:end], contexts, page, parts)


def _is_encoded(text: str) -> bool:
    if len(text) < _LEAST_ENCODED or _MOST_SPACES * text.count(" ") > len(text):
        return False
    return sum(map(len, _ENCODED.findall(text))) > _ENCODED_SHARE * len(text)


def _stretches(
    blocks: Iterable[Block], contexts: _Contexts, max_tokens: int
) -> Iterator[tuple[list[Block], list[CutUnit], list[float]]]:
    """Splits a page into stretches of blocks, with units and their room. Only very long pages have several."""
    stretch: list[Block] = []
    units: list[CutUnit] = []
    rooms: list[float] = []
    for block in blocks:
        if len(units) >= _MOST_UNITS:
            yield stretch, units, rooms
            stretch, units, rooms = [], [], []
        room = max_tokens - contexts.pieces(block.path)
        units += units_of(block, len(stretch), room)
        rooms += [room] * (len(units) - len(rooms))
        stretch.append(block)
    yield stretch, units, rooms


def _cut(blocks: Sequence[Block], units: Sequence[CutUnit], rooms: Sequence[float]) -> list[tuple[int, int]]:
    """The cheapest division of units into runs that fit their room: (first, end) of each run."""
    n = len(units)
    breaks, mixed = [0.0] * n, [0.0] * n
    for i in range(1, n):
        here, before = blocks[units[i].block], blocks[units[i - 1].block]
        breaks[i] = units[i].cost
        if here is before:
            continue
        if before.kind in HEADINGS:
            breaks[i] = BREAK_AFTER_HEADING
        elif here.kind in HEADINGS or here.path != before.path:
            breaks[i] = BREAK_SECTION
            shared = _shared(here.path, before.path)
            mixed[i] = _MIXED_SIBLING if 0 < shared < len(here.path) else _MIXED_TOP
            if len(before.path) <= shared:  # from a section's own text into its first subsection
                mixed[i] = _MIXED_SIBLING / 2
    best = [0.0] + [float("inf")] * n
    came_from = [0] * (n + 1)
    sizes = [unit.pieces for unit in units]
    for first in range(n):
        room, base = rooms[first], best[first] + breaks[first]
        filled, end = sizes[first], first + 1
        while True:
            empty = 1.0 - filled / room
            cost = base + empty * empty
            if cost < best[end]:
                best[end], came_from[end] = cost, first
            if end == n:
                break
            filled += sizes[end]
            if filled > room:
                break
            base += mixed[end]
            end += 1
    runs = []
    end = n
    while end:
        runs.append((came_from[end], end))
        end = came_from[end]
    return runs[::-1]


def _chunk(
    blocks: Sequence[Block],
    units: Sequence[CutUnit],
    contexts: _Contexts,
    page: int | None,
    parts_of_block: _PartsOfBlocks,
) -> Chunk:
    texts: list[str] = []
    numbers: list[int] = []
    parts: list[Part] = []
    length = 0
    previous: Block | None = None
    path: tuple[str, ...] | None = None
    for index, run in groupby(units, attrgetter("block")):
        block, pieces = blocks[index], list(run)
        if previous is not None:
            texts.append("\n\n" if _apart(previous, block) else "\n")
            numbers += [numbers[-1]] * (len(texts[-1]) - 1)
            length += len(texts[-1])
        piece = block.text[pieces[0].start : pieces[-1].end]
        shown = piece.lstrip("\n")
        shift = length - pieces[-1].end + len(shown)
        texts.append(shown.rstrip())
        length += len(texts[-1])
        parts += parts_of_block.between(block, pieces[0].start, pieces[-1].end, shift, length)
        # Not counted from the block's beginning: that would take quadratic time in the length of a long block.
        first_line = pieces[0].first - shown.count("\n", 0, len(shown) - len(shown.lstrip()))
        numbers += block.lines_at(first_line, texts[-1].count("\n") + 1)
        path = block.path if path is None else path[: _shared(path, block.path)]
        previous = block
    first, last = units[0], units[-1]
    opening, closing = blocks[first.block], blocks[last.block]
    assert path is not None
    if opening.kind == "heading" and path == opening.path:  # the text contains the heading itself
        path = path[:-1]
    text, numbers, parts = _without_gaps("".join(texts), numbers, parts)
    begins = opening.line_at(first.first)
    return Chunk(
        text,
        contexts.text(path),
        begins,
        closing.line_end if last.end == len(closing.text) else closing.line_at(last.last),
        page,
        None if numbers[0] == begins and counts_up(numbers) else tuple(numbers),
        packed_parts(parts),
    )


class _PartsOfBlocks:
    """The kinds of the parts of blocks, found once for a block of which several chunks have a piece."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._parts: list[Part] = []

    def between(self, block: Block, start: int, end: int, shift: int, most: int) -> Iterator[Part]:
        """The parts from `start` to `end` of a block's text. Their ends are moved by `shift`, to `most` at most."""
        if self._block is not block:
            self._block, self._parts = block, parts_of(block)
        last = start
        begin = bisect_right(self._parts, start, key=itemgetter(1))
        for at in range(begin, len(self._parts)):  # a slice would copy all parts behind it
            kind, last = self._parts[at]
            yield kind, min(last + shift, most)
            if last >= end:
                return
        if block.text[last:end].strip():
            yield NOTHING, most


def _without_gaps(text: str, numbers: list[int], parts: list[Part]) -> tuple[str, list[int], list[Part]]:
    """The text with three or more blank lines reduced to one, the numbers of the remaining lines, and its parts."""
    gaps = list(_BLANK_LINES.finditer(text))
    if not gaps:
        return text, numbers, parts
    left, at = [], 0
    for gap in reversed(gaps):
        lost = len(gap[0]) - 2
        parts = [(kind, end if end <= gap.start() else max(end - lost, gap.start())) for kind, end in parts]
    for gap in gaps:
        blank = text.count("\n", 0, gap.start()) + 1
        left += numbers[at : blank + 1]
        at = blank + gap[0].count("\n") - 1
    return _BLANK_LINES.sub("\n\n", text), left + numbers[at:], parts


def _apart(before: Block, here: Block) -> bool:
    """Whether a blank line separates two blocks, or is to show the end of a record in a format without blank lines."""
    if here.line_start - before.line_end > 1:
        return True
    return (before.lines or here.lines) is not None and ("\n" in before.text or "\n" in here.text)


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


class _Contexts:
    def __init__(self, title: str, most: float) -> None:
        self._title = " ".join(title.split())
        self._most = most
        self._texts: dict[tuple[str, ...], tuple[str, float]] = {}

    def text(self, path: tuple[str, ...]) -> str:
        return self._of(path)[0]

    def pieces(self, path: tuple[str, ...]) -> float:
        return self._of(path)[1]

    def _of(self, path: tuple[str, ...]) -> tuple[str, float]:
        known = self._texts.get(path)
        if known is None:
            names = [self._title, *(" ".join(name.split()) for name in path)]
            names = [_clipped(name) for i, name in enumerate(names) if name and (not i or name != names[i - 1])]
            # The outermost and the innermost name are the most informative.
            while len(names) > 2 and estimate_pieces(_BETWEEN.join(names)) > self._most:
                del names[1]
            text = _BETWEEN.join(names)
            while (pieces := estimate_pieces(text)) > self._most:
                text = text[: len(text) * 3 // 4]
            known = self._texts[path] = (text.strip(), pieces)
        return known


def _clipped(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS].rsplit(" ", 1)[0] + "…"


_LONGEST_RUN = 24


class _RunPieces(dict[int, float]):
    """The word pieces of a run of letters or digits by its length. A longer one counts as several."""

    def __missing__(self, length: int) -> float:
        return self[_LONGEST_RUN] * (length // _LONGEST_RUN) + self[length % _LONGEST_RUN]


_WORD_PIECES = _RunPieces(
    {0: 0.0} | {n: 1.0 + 0.12 * min(max(n - 3, 0), 7) + 0.5 * max(n - 10, 0) for n in range(1, _LONGEST_RUN + 1)}
)
_DIGIT_PIECES = _RunPieces({0: 0.0} | {n: max(1.0, 0.5 * n) for n in range(1, _LONGEST_RUN + 1)})
_LETTERS, _DIGITS = (
    bytes(byte if chr(byte) in kept else ord(" ") for byte in range(256))
    for kept in (string.ascii_letters, string.digits)
)
_UNMARKED = bytes(byte for byte in range(256) if chr(byte) not in string.punctuation)
_HANGUL = re.compile("[\uac00-\ud7a3]")
_ACCENTED = re.compile("[\u00c0-\u024f]")

MOST_PER_CHARACTER = 3


def estimate_pieces(text: str) -> float:
    """The word pieces of a text, estimated without a tokenizer. The rule is fitted to the 30,000-piece vocabularies of
    BERT models on English prose, source code, HTML and JSON. It is additive over texts that are cut at white space."""
    data = text.encode("ascii", "replace")  # every other character counts as a mark does; bytes are quicker than text
    pieces = (
        sum(map(_WORD_PIECES.__getitem__, map(len, data.translate(_LETTERS).split())))
        + sum(map(_DIGIT_PIECES.__getitem__, map(len, data.translate(_DIGITS).split())))
        + len(data.translate(None, _UNMARKED))
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

_WORD_CUT = 1.5  # The word pieces of the parts of a long word may be so many times the estimate.
_SHORT, _SHORT_ROW = 1 / 16, 1 / 4
_CHARACTERS = 8
"""A block of lines is not cut if it takes at most the share `_SHORT` of a chunk, nor is a row if it takes `_SHORT_ROW`.
The word pieces are counted only of a text with at most `_CHARACTERS` for each that it may have."""

_BREAK_INDENT = 0.05
_MOST_INDENT = 8

_ITEM = re.compile("\n(?=[ \t]*(?:[-*+•‣·]|\\(?(?:[0-9]{1,3}|[a-zA-Z])[.)])[ \t])")
_WORDS = re.compile("\\S+\\s*|\\s+")


class CutUnit(NamedTuple):
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


def units_of(block: Block, index: int, most: float) -> Iterator[CutUnit]:
    """Splits a block into units of at most `most` word pieces, which together have all its visible characters."""
    text = block.text
    share = _SHORT_ROW if block.kind == "row" else _SHORT
    if block.kind in _BY_LINES and len(text) <= most * share * _CHARACTERS and text.strip():
        pieces = estimate_pieces(text)
        if pieces <= most * share:  # a fast path for the rows of very long tables
            begin = len(text) - len(text.lstrip())
            yield CutUnit(
                index, 0, len(text), pieces, BREAK_BLOCK, text.count("\n", 0, begin), text.rstrip().count("\n")
            )
            return
    cuts = _sentences(text) if block.kind in _BY_SENTENCES else _lines(text) if block.kind in _BY_LINES else iter(())
    start, cost, line = 0, BREAK_BLOCK, 0
    for end, next_cost in chain(cuts, [(len(text), 0.0)]):
        for a, b, pieces, inner in _shortened(text, start, end, most):
            visible = text[a:b].lstrip()
            begin = b - len(visible)
            first = line + text.count("\n", a, begin)
            last = first + visible.rstrip().count("\n")
            if visible:
                yield CutUnit(index, a, b, pieces, inner or cost, first, last)
            line += text.count("\n", a, b)
        start, cost = end, next_cost


def _sentences(text: str) -> Iterator[tuple[int, float]]:
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
    """Splits a range into quarters of `most` word pieces, preferably between lines, then words: (start, end, word
    pieces, cost of a cut before it). The first costs 0, and a range that fits stays whole."""
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
