"""`Unit`: a part of a passage that says one thing, and the parts that a docstring or a list item is made of."""

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
"""List items and docstrings' paragraphs of more words are cut into sentences."""

_EMPTY_LINE = re.compile(r"(\n[ \t]*\n)")
_ARGUMENTS = re.compile(r"\s*\w+:")
_ENTRY = re.compile(r"^([ \t]*)\S.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a passage.

    Attributes:
        text: on one line, as it is shown.
        kind: what it is.
        start, end: where it stands in the passage.
        heading: the headings, section or function that it stands under, on one line; empty if there are none.
    """

    text: str
    kind: Kind
    start: int
    end: int
    heading: str = ""

    @property
    def quotable(self) -> bool:
        """Whether it can be shown as a part of an answer."""
        return self.kind in _QUOTABLE


def whole(text: str, start: int, end: int, kind: Kind, heading: str) -> Iterator[Unit]:
    """A part of a passage as one unit, without the mark of a list item; if it is long, its sentences."""
    part = text[start:end]
    long = len(part.split()) > _WHOLE_WORDS
    for first, last in spans(part) if long else [(0, len(part))]:
        shown = plain(ITEM.sub("", part[first:last]) if kind == "item" else part[first:last])
        if WORD.search(shown):
            yield Unit(shown, kind, start + first, start + last, heading)


def paragraphs(text: str, start: int, end: int, kind: Kind, heading: str) -> Iterator[Unit]:
    """The paragraphs of a docstring, each as a whole; of an indented list below a line such as `Args:` the entries."""
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
