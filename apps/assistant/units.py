"""`Unit`: a part of a passage that holds one statement; and the splitting of docstrings and list items into units."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from edge.apps.assistant.line_kinds import ITEM, WORD, plain
from edge.sentences import spans

Kind = Literal["sentence", "item", "row", "setting", "docstring", "code", "heading", "navigation"]

_QUOTABLE = frozenset({"sentence", "item", "row", "setting", "docstring"})

_WHOLE_WORDS = 60
"""List items and docstring paragraphs of more words than this are split into sentences."""

_EMPTY_LINE = re.compile(r"(\n[ \t]*\n)")
_ARGUMENTS = re.compile(r"\s*\w+:")
_ENTRY = re.compile(r"^([ \t]*)\S.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a passage.

    Attributes:
        text: the text to show, on one line.
        kind: the kind of the part.
        start, end: its position in the passage, in characters.
        heading: the headings, section or function above it, on one line; empty if there are none.
    """

    text: str
    kind: Kind
    start: int
    end: int
    heading: str = ""

    @property
    def quotable(self) -> bool:
        """Whether the unit can be shown as a part of an answer."""
        return self.kind in _QUOTABLE


def whole(text: str, start: int, end: int, kind: Kind, heading: str) -> Iterator[Unit]:
    """Yields a part of a passage as one unit, without the mark of a list item. A long part is split into sentences."""
    part = text[start:end]
    long = len(part.split()) > _WHOLE_WORDS
    for first, last in spans(part) if long else [(0, len(part))]:
        shown = plain(ITEM.sub("", part[first:last]) if kind == "item" else part[first:last])
        if WORD.search(shown):
            yield Unit(shown, kind, start + first, start + last, heading)


def paragraphs(text: str, start: int, end: int, kind: Kind, heading: str) -> Iterator[Unit]:
    """Yields the paragraphs of a docstring. The entries of a section such as `Args:` are units of their own."""
    at = start
    for part in _EMPTY_LINE.split(text[start:end]):
        begin, at = at, at + len(part)
        body = part.strip()
        if not WORD.search(body):
            continue
        begin += len(part) - len(part.lstrip())
        first, _, rest = body.partition("\n")
        if rest and _ARGUMENTS.fullmatch(first):
            yield from _entries(text, begin + len(first) + 1, begin + len(body), kind, heading)
        else:
            yield from whole(text, begin, begin + len(body), kind, heading)


def _entries(text: str, start: int, end: int, kind: Kind, heading: str) -> Iterator[Unit]:
    lines = list(_ENTRY.finditer(text[start:end]))
    least = min(len(line[1].expandtabs(4)) for line in lines)
    heads = [start + line.start() for line in lines if len(line[1].expandtabs(4)) == least]
    for head, stop in zip(heads, [*heads[1:], end], strict=True):
        yield Unit(" ".join(text[head:stop].split()), kind, head, stop, heading)
