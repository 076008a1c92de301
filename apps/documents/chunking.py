"""Splits blocks into chunks: passages with a limited number of word pieces that begin and end at natural boundaries.

The best cuts are a shortest path over all units of a page. Each chunk costs the square of its unused share, each cut
costs what `units` assigns to it, and each boundary between sections inside a chunk costs more the higher it is in the
outline. So small neighbours are merged, long sections are cut into equal parts, and a sentence is cut only if it is
longer than a chunk. Chunks do not overlap, and no visible character of a document is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from edge.apps.documents.base import Block, Chunk, counts_up
from edge.apps.documents.units import BREAK_AFTER_HEADING, BREAK_SECTION, Unit, estimate_pieces, units_of

MAX_TOKENS = 220
"""Estimated word pieces of a chunk with context. Embedders truncate at 256; the estimate may be a sixth too low."""

_CONTEXT_SHARE = 4
_NAME_CHARS = 80
_MIXED_TOP = 0.8
_MIXED_SIBLING = 0.35
_BETWEEN = " > "
_MOST_UNITS = 20_000
"""Units that are cut together. A longer page, such as a huge table, is cut in parts to bound the memory."""

_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")


def chunks_of(blocks: Iterable[Block], title: str, *, max_tokens: int = MAX_TOKENS) -> Iterator[Chunk]:
    """Cuts a document into chunks.

    Args:
        blocks: in reading order; at most one page, or `_MOST_UNITS` units, are in memory at a time.
        title: begins the context of every chunk.
        max_tokens: the most estimated word pieces of a chunk's text and context together.
    """
    contexts = _Contexts(title, max_tokens // _CONTEXT_SHARE)
    for page, blocks_of_page in groupby(blocks, lambda block: block.page):
        for stretch, units, rooms in _stretches(blocks_of_page, contexts, max_tokens):
            for first, end in _cut(stretch, units, rooms):
                yield _chunk(stretch, units[first:end], contexts, page)


def _stretches(
    blocks: Iterable[Block], contexts: _Contexts, max_tokens: int
) -> Iterator[tuple[list[Block], list[Unit], list[float]]]:
    """Splits a page into stretches of blocks, with units and their room. Only very long pages have several."""
    stretch: list[Block] = []
    units: list[Unit] = []
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


def _cut(blocks: Sequence[Block], units: Sequence[Unit], rooms: Sequence[float]) -> list[tuple[int, int]]:
    """The cheapest division of units into runs that fit their room: (first, end) of each run."""
    n = len(units)
    breaks, mixed = [0.0] * n, [0.0] * n
    for i in range(1, n):
        here, before = blocks[units[i].block], blocks[units[i - 1].block]
        breaks[i] = units[i].cost
        if here is before:
            continue
        if before.kind == "heading":
            breaks[i] = BREAK_AFTER_HEADING
        elif here.kind == "heading" or here.path != before.path:
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


def _chunk(blocks: Sequence[Block], units: Sequence[Unit], contexts: _Contexts, page: int | None) -> Chunk:
    texts: list[str] = []
    numbers: list[int] = []
    previous: Block | None = None
    path: tuple[str, ...] | None = None
    for index, run in groupby(units, lambda unit: unit.block):
        block, pieces = blocks[index], list(run)
        if previous is not None:
            texts.append("\n\n" if _apart(previous, block) else "\n")
            numbers += [numbers[-1]] * (len(texts[-1]) - 1)
        shown = block.text[pieces[0].start : pieces[-1].end].lstrip("\n")
        texts.append(shown.rstrip())
        # Not counted from the block's beginning: that would take quadratic time in the length of a long block.
        first_line = pieces[0].first - shown.count("\n", 0, len(shown) - len(shown.lstrip()))
        numbers += [block.line_at(first_line + i) for i in range(texts[-1].count("\n") + 1)]
        path = block.path if path is None else path[: _shared(path, block.path)]
        previous = block
    first, last = units[0], units[-1]
    opening, closing = blocks[first.block], blocks[last.block]
    assert path is not None
    if opening.kind == "heading" and path == opening.path:  # the text contains the heading itself
        path = path[:-1]
    text, numbers = _without_gaps("".join(texts), numbers)
    begins = opening.line_at(first.first)
    return Chunk(
        text,
        contexts.text(path),
        begins,
        closing.line_end if last.end == len(closing.text) else closing.line_at(last.last),
        page,
        None if numbers[0] == begins and counts_up(numbers) else tuple(numbers),
    )


def _without_gaps(text: str, numbers: list[int]) -> tuple[str, list[int]]:
    """The text with three or more blank lines reduced to one, and the numbers of the remaining lines."""
    left, at = [], 0
    for gap in _BLANK_LINES.finditer(text):
        blank = text.count("\n", 0, gap.start()) + 1
        left += numbers[at : blank + 1]
        at = blank + gap[0].count("\n") - 1
    return _BLANK_LINES.sub("\n\n", text), left + numbers[at:]


def _apart(before: Block, here: Block) -> bool:
    """Whether a blank line separates two blocks: because the file has one, or to show the end of a record or paragraph
    in a format without blank lines."""
    if here.line_start - before.line_end > 1:
        return True
    return (before.lines or here.lines) is not None and ("\n" in before.text or "\n" in here.text)


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many headings two paths have in common, from the top."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


class _Contexts:
    """Titles and heading paths as text, shortened to their share of a chunk."""

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
