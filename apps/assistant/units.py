"""The parts of a passage as units: texts on one line, each with its headings, one statement each. Answers quote units,
citations name their lines, and sentences are checked against them. `windows`: what may be shown of a passage as an
answer, a few neighbouring units of one section, with the headings that it begins with: in a manual page these are the
option that the words below describe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from textwrap import dedent
from typing import Literal

from edge.apps.documents import kinds
from edge.apps.documents.kinds import COMMENT_MARK, ITEM_MARK, QUOTE_MARK, WORD, Part, is_setting, unmarked

Kind = Literal["sentence", "item", "row", "setting", "docstring", "code", "heading", "navigation"]

_NAMES: dict[int, Kind] = {
    kinds.SENTENCE: "sentence", kinds.ITEM: "item", kinds.ROW: "row", kinds.COLUMNS: "heading",
    kinds.SETTING: "setting", kinds.DOCSTRING: "docstring", kinds.CODE: "code", kinds.COMMAND: "setting",
    kinds.COMMENT: "sentence", kinds.NAVIGATION: "navigation",
}  # fmt: skip
_QUOTABLE = frozenset({"sentence", "item", "row", "setting", "docstring", "code"})

_HEADING_MARKS = re.compile(r"^\s{0,3}#{1,6}\s+|(?<!\s)\s+#+\s*$|^[^\w\n]{3,}$", re.MULTILINE)
_SECTION = re.compile(r"^\[(.*)\]$")
_LONE_MARK = re.compile(r"(?<=\s)([?!.:;])(?=\s)")
_DEFINED = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")
_PROMPT = re.compile(r"^\s*(?:[$%]|>>>)\s+")
_INDEX = re.compile(r"\[\d+\]\.?")
_CELLS = re.compile(r"(?<!\\)\|")
_LONGEST_COMMAND = 100
_CODE_LINES = 12
_DEFINED_LINES = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a passage: its text on one line (code keeps its lines), its position in characters, and the headings,
    section or function above it."""

    text: str
    kind: Kind
    start: int
    end: int
    heading: str = ""

    @property
    def quotable(self) -> bool:
        return self.kind in _QUOTABLE


@lru_cache(maxsize=64)
def units(text: str, parts: tuple[Part, ...] = ()) -> tuple[Unit, ...]:
    """The units of a passage in their order.

    Args:
        text: the passage.
        parts: the kinds and ends of its parts; not given, they are recognized as those of plain text.

    >>> text = "# Rent\\n\\nIt is 870 euros a month and\\ndue at once. Pay it.\\n- by bank"
    >>> [(unit.kind, unit.text) for unit in units(text)]  # doctest: +NORMALIZE_WHITESPACE
    [('heading', 'Rent'), ('sentence', 'It is 870 euros a month and due at once.'), ('sentence', 'Pay it.'),
     ('item', 'by bank')]
    """
    return tuple(_Passage(text).read(parts or kinds.recognised(text)))


class _Passage:
    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[Unit] = []
        self._headings: dict[int, str] = {}
        self._columns: list[str] = []

    def read(self, parts: tuple[Part, ...] | list[Part]) -> list[Unit]:
        start = 0
        for kind, end in parts:
            part = self._text[start:end]
            begin = start + len(part) - len(part.lstrip())
            stop = start + len(part.rstrip())
            start = end
            if begin < stop and kind != kinds.NOTHING:
                self._take(kind, begin, stop)
        return self._found

    def _take(self, kind: int, start: int, end: int) -> None:
        text = self._text[start:end]
        if kind >= kinds.HEADING and len(text.split()) > WORDS:
            kind = kinds.SENTENCE  # more words than a window has name nothing, whatever the style of the document says
        above = " > ".join(self._headings[depth] for depth in sorted(self._headings))
        if kind >= kinds.HEADING:
            shown = _SECTION.sub(r"\1", unmarked(_HEADING_MARKS.sub("", text)).rstrip(":")).strip('"')
            depth = kind - kinds.HEADING
            self._headings = {d: name for d, name in self._headings.items() if d < depth} | {depth: shown}
            self._add(shown, "heading", start, end, "")
        elif kind in (kinds.CODE, kinds.COMMAND):
            self._take_code(kind, start, end, above)
        elif kind == kinds.COLUMNS:
            self._columns = _cells(text)
            self._add(", ".join(self._columns), "heading", start, end, above)
        else:
            name = self._defined(start) if kind == kinds.DOCSTRING else ""
            self._add(self._shown(kind, text), _NAMES[kind], start, end, name or above)

    def _add(self, text: str, kind: Kind, start: int, end: int, heading: str) -> None:
        shown = " ".join(text.split())
        if WORD.search(shown):
            self._found.append(Unit(shown, kind, start, end, heading))

    def _shown(self, kind: int, text: str) -> str:
        if kind == kinds.ROW:
            return self._row(text)
        if kind == kinds.SETTING:
            return _setting(text)
        if kind == kinds.COMMENT:
            return ITEM_MARK.sub("", _said(text.split("\n")))
        if kind == kinds.ITEM:
            return unmarked(ITEM_MARK.sub("", text))
        return _LONE_MARK.sub(r"`\1`", unmarked(QUOTE_MARK.sub("", text))) if kind == kinds.SENTENCE else unmarked(text)

    def _row(self, text: str) -> str:
        """A row of a table with the names of its columns, or a record without its own index."""
        lines = [_INDEX.sub("", line, count=1) if _INDEX.match(line) else line for line in text.split("\n")]
        values = _cells(text) if len(lines) == 1 else []
        if len(values) < 2:
            return ", ".join(lines)
        names = self._columns if len(self._columns) == len(values) else [""] * len(values)
        pairs = zip(names, values, strict=True)
        return ", ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)

    def _take_code(self, kind: int, start: int, end: int, above: str) -> None:
        """Adds code: a short command like a setting, and else blocks of some lines."""
        lines = list(kinds.line_spans(self._text, start, end))
        command = _PROMPT.sub("", self._text[start:end]).strip()
        if kind == kinds.COMMAND and len(lines) == 1 and len(command) <= _LONGEST_COMMAND:
            self._add(f"`{command}`", "setting", start, end, above)
            return
        for first in range(0, len(lines), _CODE_LINES):
            block = lines[first : first + _CODE_LINES]
            begin, end = block[0][0], block[-1][1]
            line = self._text.rfind("\n", 0, begin) + 1
            text = self._text[begin if self._text[line:begin].strip() else line : end]
            if WORD.search(text):
                self._found.append(Unit(dedent(text).strip(), "code", begin, end, above))

    def _defined(self, start: int) -> str:
        """The name of the function or class whose docstring begins here; empty if it is not in the passage."""
        for unit in reversed(self._found[-_DEFINED_LINES:]):
            if unit.kind == "docstring":
                return unit.heading
            if match := _DEFINED.match(unit.text):
                return match[1]
        return ""


def _setting(text: str) -> str:
    """A setting in the form in which it is quoted: with the words of its comment before it."""
    *comments, line = text.split("\n")
    line = line.strip()
    value, mark, behind = line.partition("  #")
    said = _said(comments) if comments else behind
    if said.strip():
        return f"{said.strip().rstrip('.:')}: `{(line if comments or not mark else value).strip()}`"
    return f"`{line}`" if "=" in line and is_setting(line) else line


def _said(lines: list[str]) -> str:
    return " ".join(COMMENT_MARK.sub("", line).strip() for line in lines)


def _cells(line: str) -> list[str]:
    line = line.strip()
    return [unmarked(cell) for cell in _CELLS.split(line.strip("|") if line.startswith("|") else line)]


WORDS = 60
"""The most words of a window, unless one unit has more, or code follows the words that lead up to it."""

_LED = 1.5
"""The share of `WORDS` that a window may have with the code or the items behind a colon."""


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring units of a section, with the headings right above it, which belong to every window of it."""

    headings: tuple[Unit, ...]
    units: tuple[Unit, ...]

    @property
    def shown(self) -> tuple[Unit, ...]:
        return self.headings + self.units

    @property
    def text(self) -> str:
        return "\n".join(unit.text for unit in self.shown)

    def places(self, at: int) -> list[tuple[int, int]]:
        """Start and end of each part in a text in which `text` begins `at` a character."""
        starts = accumulate((len(unit.text) + 1 for unit in self.shown), initial=at)
        return [(start, start + len(unit.text)) for start, unit in zip(starts, self.shown, strict=False)]

    def only(self, unit: Unit) -> tuple[Unit, ...]:
        """One of its units, with the one that it leads up to."""
        at = self.units.index(unit)
        led = self.units[at + 1 : at + 2]
        return (unit, *(each for each in led if leads(unit, each)))


def windows(units: Sequence[Unit]) -> list[Window]:
    """The windows of a passage's units. Those of a long section overlap by half. Menus are in none of them if there is
    anything else.

    >>> [window.text for window in windows(units("# Rent\\n\\nIt is due at once.\\n\\n# Pets\\n\\nDogs are allowed."))]
    ['Rent\\nIt is due at once.', 'Pets\\nDogs are allowed.']
    """
    shown = [unit for unit in units if unit.kind != "navigation"] or units
    found = [window for section in _sections(shown) if section.units for window in _cut(section)]
    # Headings above nothing are shown only where there is nothing else, as units.
    return found or (list(_cut(Window((), tuple(shown)))) if shown else [])


def _sections(units: Sequence[Unit]) -> Iterator[Window]:
    start = 0
    for end in range(1, len(units) + 1):
        if end == len(units) or (units[end].kind == "heading" and units[end - 1].kind != "heading"):
            below = next((at for at in range(start, end) if units[at].kind != "heading"), end)
            headings = units[start:below]
            if below < end:  # those with nothing below them, and the names of columns, which rows repeat, say nothing
                headings = [unit for unit in headings if unit.text in units[below].heading]
            yield Window(tuple(headings), tuple(units[below:end]))
            start = end


def _cut(section: Window) -> Iterator[Window]:
    units = section.units
    sizes = [len(unit.text.split()) for unit in units]
    first = 0
    while True:
        end, words = first + 1, sizes[first]
        while end < len(units) and words + sizes[end] <= WORDS * (_LED if leads(units[end - 1], units[end]) else 1):
            words += sizes[end]
            end += 1
        yield Window(section.headings, units[first:end])
        if end == len(units):
            return
        passed = sizes[first]
        first += 1
        while first < end and passed < words / 2:
            passed += sizes[first]
            first += 1


def leads(before: Unit, unit: Unit) -> bool:
    """Whether a unit leads up to the one behind it, without which it says little."""
    return before.text.endswith(":") and unit.kind in ("code", "setting", "item")
