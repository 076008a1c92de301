"""Splits a passage into units: sentences, items, rows, settings and docstrings; and headings, code and menus.

An answer without a language model quotes units of a passage, and a citation names a unit's line. A unit holds one
statement: a sentence joined over its wrapped lines, a whole list item or docstring paragraph, a table's row with the
names of its columns, or a setting with the comment above it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge.apps.assistant.units import (
    COMMENT,
    DOCSTRING,
    FENCE,
    HEADING_WORDS,
    INDENTED,
    ITEM,
    RULE,
    SECTION,
    WORD,
    Kind,
    Unit,
    cells,
    continues,
    indent,
    is_code,
    is_comment_above,
    is_heading,
    is_menu,
    is_setting,
    one_row,
    paragraphs,
    plain,
    records,
    whole,
)
from edge.text.sentences import spans

_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(.*?)\s*#*$")
_UNDERLINE = re.compile(r"^\s*(={3,}|-{3,}|~{3,}|\^{3,})\s*$")
_QUOTE_MARK = re.compile(r"^\s*>\s?(?!>)")
_QUOTES = '"""'
_LONE_MARK = re.compile(r"(?<=\s)([?!.:;])(?=\s)")
_DEFINED = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")


_LONGEST_CODE = 100
_SHORT_CODE = 3


def units(text: str) -> list[Unit]:
    """The units of a passage in their order.

    >>> text = "# Rent\\n\\nIt is 870 euros a month and\\ndue at once. Pay it.\\n- by bank"
    >>> [(unit.kind, unit.text) for unit in units(text)]  # doctest: +NORMALIZE_WHITESPACE
    [('heading', 'Rent'), ('sentence', 'It is 870 euros a month and due at once.'), ('sentence', 'Pay it.'),
     ('item', 'by bank')]
    """
    return _Reader(text).read()


def quotable(text: str) -> list[Unit]:
    """The units of a passage that can be quoted. A passage without sentences, items or rows gives its headings and
    code lines, or else all its units."""
    found = units(text)
    return (
        [unit for unit in found if unit.quotable]
        or [unit for unit in found if unit.kind in ("heading", "code")]
        or found
    )


@dataclass(slots=True)
class _Line:
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class _Reader:
    """Reads a passage line by line. Each method `_take_<kind>` tries to read a part of that kind from the current line
    on, and returns whether it found one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: list[_Line] = []
        start = 0
        for line in text.split("\n"):
            self._lines.append(_Line(start, line))
            start += len(line) + 1
        self._width = max(len(line.text.rstrip()) for line in self._lines)
        self._records = records([line.text for line in self._lines])
        self._at = 0
        self._found: list[Unit] = []
        self._headings: dict[int, str] = {}

    def read(self) -> list[Unit]:
        self._take_rest_of_docstring()
        takers = (
            self._take_blank, self._take_fence, self._take_docstring, self._take_record, self._take_table,
            self._take_heading, self._take_comment, self._take_navigation, self._take_section, self._take_code,
            self._take_setting,
        )  # fmt: skip
        while self._at < len(self._lines):
            if not any(take() for take in takers):
                self._take_paragraph()
        return self._found

    @property
    def _line(self) -> str:
        return self._lines[self._at].text

    @property
    def _below(self) -> str:
        return self._lines[self._at + 1].text if self._at + 1 < len(self._lines) else ""

    def _add(self, kind: Kind, first: int, last: int, text: str | None = None, heading: str | None = None) -> None:
        """Adds the lines `first` to `last`, both included, as one unit."""
        start, end = self._lines[first].start, self._lines[last].end
        shown = " ".join((self._text[start:end] if text is None else text).split())
        if WORD.search(shown):
            self._found.append(Unit(shown, kind, start, end, self._under() if heading is None else heading))

    def _under(self) -> str:
        return " > ".join(self._headings[level] for level in sorted(self._headings))

    def _head(self, level: int, text: str) -> None:
        self._headings = {known: name for known, name in self._headings.items() if known < level} | {level: text}

    def _take_blank(self) -> bool:
        if self._line.strip() and not RULE.match(self._line):
            return False
        self._at += 1
        return True

    def _take_fence(self) -> bool:
        if not FENCE.match(self._line):
            return False
        mark = self._line.strip()[:3]
        end = self._at + 1
        while end < len(self._lines) and not self._lines[end].text.strip().startswith(mark):
            end += 1
        self._code(self._at + 1, end, command=True)
        self._at = end + 1
        return True

    def _code(self, first: int, end: int, *, command: bool = False) -> None:
        """Adds lines of code. The first line of a short block is also appended to a sentence before it that ends in a
        colon. A single command in a fenced block can be quoted by itself."""
        written = [n for n in range(first, min(end, len(self._lines))) if self._lines[n].text.strip()]
        if not written:
            return
        line = re.sub(r"^\s*(?:[$%]|>>>)\s+", "", self._lines[written[0]].text).strip()
        before = self._found[-1] if self._found else None
        if before is not None and before.text.endswith(":") and before.quotable and len(line) <= _LONGEST_CODE:
            if len(written) <= _SHORT_CODE or is_code(self._lines[written[0]].text):
                end_at = self._lines[written[0]].end
                self._found[-1] = Unit(f"{before.text} `{line}`", before.kind, before.start, end_at, before.heading)
        elif command and len(written) == 1 and len(line) <= _LONGEST_CODE:
            self._add("setting", written[0], written[0], f"`{line}`")
            return
        for number in written:
            self._add("code", number, number)

    def _take_docstring(self) -> bool:
        opened = DOCSTRING.match(self._line)
        if opened is None:
            return False
        mark, first = opened[1], self._at
        name = self._defined()
        last = first
        if mark not in self._line[opened.end() :]:
            last += 1
            while last < len(self._lines) - 1 and mark not in self._lines[last].text:
                last += 1
        start = self._lines[first].start + opened.end()
        end = min(self._lines[min(last, len(self._lines) - 1)].end, len(self._text))
        end = start + (self._text[start:end].rfind(mark) if mark in self._text[start:end] else end - start)
        self._found += paragraphs(self._text, start, end, "docstring", name)
        self._at = last + 1
        return True

    def _take_rest_of_docstring(self) -> None:
        """Reads the end of a docstring, up to its closing quotes, if the passage begins inside one."""
        for number, line in enumerate(self._lines):
            if (at := line.text.find(_QUOTES)) < 0:
                continue
            rest = line.text[at + len(_QUOTES) :].strip()
            if not rest and (not line.text[:at].strip() or number > 0) and not DOCSTRING.match(line.text[:at] + "."):
                indented = all(before.text[:1] in (" ", "") for before in self._lines[:number])
                if indented and WORD.search(self._text[: line.start + at]) and self._text.count(_QUOTES) % 2:
                    self._found += paragraphs(self._text, 0, line.start + at, "docstring", "")
                    self._at = number + 1
            return

    def _defined(self) -> str:
        """The name of the function or class whose docstring begins here; otherwise the headings above."""
        for number in range(self._at - 1, max(-1, self._at - 6), -1):
            if match := _DEFINED.match(self._lines[number].text):
                return match[1]
            if not self._lines[number].text.strip():
                break
        return self._under()

    def _take_table(self) -> bool:
        """Reads rows with equal numbers of cells. The first row, if a rule follows it or the rows have no outer bars,
        names the columns."""
        first = self._at
        rows: list[int] = []
        count, ruled = 0, False
        number = first
        while number < len(self._lines):
            line = self._lines[number].text
            if RULE.match(line) and rows:
                ruled = ruled or len(rows) == 1
                number += 1
                continue
            found = len(cells(line))
            if found < 2 or (count and found != count):
                break
            count = found
            rows.append(number)
            number += 1
        outer = self._line.lstrip().startswith("|")
        if not rows or (len(rows) < 2 and not outer):
            return False
        names = cells(self._lines[rows[0]].text) if len(rows) > 1 and (ruled or not outer) else []
        if names:
            self._add("heading", rows[0], rows[0], ", ".join(names))
        for row in rows[1:] if names else rows:
            values = cells(self._lines[row].text)
            pairs = zip(names or [""] * len(values), values, strict=True)
            shown = ", ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)
            self._add("row", row, row, shown)
        self._at = number
        return True

    def _take_record(self) -> bool:
        end = self._records.get(self._at)
        if end is None:
            return False
        self._add("row", self._at, end - 1, one_row([line.text for line in self._lines[self._at : end]]))
        self._at = end
        return True

    def _take_heading(self) -> bool:
        marked = _HEADING.match(self._line)
        if marked and not is_comment_above(self._line, self._below):
            self._head(len(marked[1]), plain(marked[2]))
            self._add("heading", self._at, self._at, plain(marked[2]), "")
            self._at += 1
            return True
        if _UNDERLINE.match(self._below) and len(self._line.split()) <= HEADING_WORDS and not is_code(self._line):
            self._head(1 if self._below.strip()[0] == "=" else 2, plain(self._line))
            self._add("heading", self._at, self._at, plain(self._line), "")
            self._at += 2
            return True
        return False

    def _take_comment(self) -> bool:
        """Reads a comment, with the setting directly below it."""
        if not COMMENT.match(self._line) or ITEM.match(self._line):
            return False
        first = last = self._at
        while last + 1 < len(self._lines) and COMMENT.match(self._lines[last + 1].text):
            last += 1
        said = " ".join(COMMENT.sub("", self._lines[n].text).strip() for n in range(first, last + 1))
        self._at = last + 1
        if self._at < len(self._lines) and is_setting(self._line):
            self._add("setting", first, self._at, f"{said.rstrip('.:')}: `{self._line.strip()}`")
            self._at += 1
        elif not said.startswith("!"):
            self._add("sentence", first, last, ITEM.sub("", said))
        return True

    def _take_navigation(self) -> bool:
        if not is_menu(self._line):
            return False
        self._add("navigation", self._at, self._at, plain(self._line))
        self._at += 1
        return True

    def _take_section(self) -> bool:
        """Reads the head of a section of a configuration file: `[mail]`, or a key with an empty value."""
        if not SECTION.match(self._line):
            return False
        name = self._line.strip().strip("[]:").strip('"')
        indent = len(self._line) - len(self._line.lstrip())
        self._head(10 + indent, name)
        self._add("heading", self._at, self._at, name, "")
        self._at += 1
        return True

    def _take_code(self) -> bool:
        line = self._line
        before = self._lines[self._at - 1].text if self._at else ""
        before = "" if COMMENT.match(before) else before
        indented = INDENTED.match(line) and not ITEM.match(line) and self._after_code()
        if not (is_code(line) or indented) or self._continues(before, line):
            return False
        if self._is_plain_setting(line):
            return False
        end = self._at + 1
        while end < len(self._lines) and self._lines[end].text.strip():
            if not (is_code(self._lines[end].text) or INDENTED.match(self._lines[end].text)):
                break
            if DOCSTRING.match(self._lines[end].text):
                break
            end += 1
        self._code(self._at, end)
        self._at = end
        return True

    @staticmethod
    def _leads(line: str) -> bool:
        """Whether a line is text that a short list item above it is the heading of."""
        return bool(line.strip()) and not ITEM.match(line) and not line[:1].isspace() and len(line.split()) > 5

    def _continues(self, last: str, line: str) -> bool:
        return continues(last, line, self._width)

    def _after_code(self) -> bool:
        """Whether indented lines here are code, since they follow code or a sentence that ends in a colon."""
        if not self._found:
            return False
        before = self._found[-1]
        return before.kind == "code" or before.text.endswith((":", "`"))

    @staticmethod
    def _is_plain_setting(line: str) -> bool:
        return is_setting(line) and not line.rstrip().endswith(("{", "(", "[", ";"))

    def _take_setting(self) -> bool:
        if not is_setting(self._line):
            return False
        code = "=" in self._line or re.match(r"^\s*[a-z_][\w-]*: ", self._line)
        text = self._line.strip()
        shown = text
        if code and "  #" in text:
            value, _, said = text.partition("  #")
            shown = f"{said.strip().rstrip('.:')}: `{value.strip()}`"
        elif code and "=" in text:
            shown = f"`{text}`"
        self._add("setting", self._at, self._at, shown)
        self._at += 1
        return True

    def _take_paragraph(self) -> None:
        """Reads a list item, or the wrapped lines of a paragraph."""
        first = last = self._at
        item, inside = ITEM.match(self._line) is not None, indent(self._line)
        while last + 1 < len(self._lines):
            line, following = self._lines[last].text, self._lines[last + 1].text
            hanging = item and following.strip() and not ITEM.match(following) and indent(following) > inside
            code = is_code(following) and not self._continues(line, following)
            code = code or (item and (SECTION.match(following) is not None or is_setting(following)))
            if not (hanging or self._continues(line, following)) or code or FENCE.match(following):
                break
            last += 1
        start, end = self._lines[first].start, self._lines[last].end
        text = self._text[start:end]
        self._at = last + 1
        if item and is_heading(ITEM.sub("", text)) and self._at < len(self._lines) and self._leads(self._line):
            self._head(8, plain(text))
            self._add("heading", first, last, plain(text), "")
        elif item:
            self._found += whole(self._text, start, end, "item", self._under())
        elif is_heading(text):
            name = plain(text)
            if not name.endswith(("|", ">")):
                self._head(8, name)
            self._add("heading", first, last, name, "")
        else:
            for a, b in spans(_QUOTE_MARK.sub(lambda match: " " * len(match[0]), text)):
                shown = _LONE_MARK.sub(r"`\1`", plain(text[a:b]))
                self._found.append(Unit(shown, "sentence", start + a, start + b, self._under()))
