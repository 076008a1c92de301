"""Titles that a line of punctuation under them marks, as reStructuredText and many plain texts have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+\s*")
_LONGEST_TITLE = 200
_SHORTEST_RULE = 4


@dataclass(frozen=True, slots=True)
class Title:
    """A title.

    Attributes:
        first, end: its lines, counted from 0, the lines of punctuation included; `end` is the line after.
        level: 1 for the style of adornment that occurs first, 2 for the second, ...
    """

    text: str
    first: int
    end: int
    level: int


def titles(lines: Sequence[str], *, short: bool = False) -> Iterator[Title]:
    """Titles in a text: a line at the left margin after a blank one, over a line of one repeated mark that is at least
    as long; perhaps under another such line, and then it may be indented (reStructuredText specification, "Sections").

    Args:
        short: takes a line of four marks under any title, as docutils does with a warning.
    """
    styles: list[str] = []
    at = after_title = 0
    while at < len(lines) - 1:
        begins = at == after_title or not lines[at - 1].strip()
        end, style = _title_at(lines, at, short) if begins else (0, "")
        if not end:
            at += 1
            continue
        if style not in styles:
            styles.append(style)
        text = lines[at + 1] if len(style) == 2 else lines[at]
        yield Title(" ".join(text.split()), at, end, styles.index(style) + 1)
        at = after_title = end


def _title_at(lines: Sequence[str], at: int, short: bool) -> tuple[int, str]:
    """The line after a title that begins at line `at`, and its style; 0 if none begins there."""
    line = lines[at]
    if not line.strip():
        return 0, ""
    over = _RULE.fullmatch(line)
    if over:
        if at + 2 >= len(lines):
            return 0, ""
        text, under = lines[at + 1], _RULE.fullmatch(lines[at + 2])
        if under and under[1] == over[1] and _fits(text, lines[at + 2], short) and _fits(text, line, short):
            return at + 3, over[1] * 2
        return 0, ""
    under = _RULE.fullmatch(lines[at + 1])
    if under and not line[0].isspace() and _fits(line, lines[at + 1], short):
        return at + 2, under[1]
    return 0, ""


def _fits(text: str, rule: str, short: bool) -> bool:
    title, marks = len(text.strip()), len(rule.rstrip())
    if not 0 < title <= _LONGEST_TITLE or _RULE.fullmatch(text):
        return False
    return title <= marks or (short and marks >= _SHORTEST_RULE)
