"""Kinds of the parts of a text: sentences, list items, rows, settings, docstrings, code or headings. They are stored
with each passage, for an answer that quotes whole statements. A part is a pair of its kind and the offset where it
ends. It begins behind the part before, without white space."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from edge.text.sentences import spans

if TYPE_CHECKING:
    from edge.apps.documents.base import Block

NOTHING, SENTENCE, ITEM, ROW, COLUMNS, SETTING, DOCSTRING, CODE, COMMAND, COMMENT, NAVIGATION = range(11)
"""`NOTHING` is a rule or a mark. `COLUMNS` names the columns of the rows below it. `COMMAND` is a single line of code
that the text shows, `COMMENT` a comment in code. `SETTING` may include the comment above it."""

HEADING = 16
"""A heading, plus its depth: a heading ends those above it that are as deep or deeper."""

DESCRIBED, _PASSING, _SECTION = 7, 8, 10
"""The depth of a name that is described below it, of a short line that stands like a heading, and of a section in a
file of settings."""

Part = tuple[int, int]

ITEM_MARK = re.compile(r"^\s*(?:[-*•–+]\s+)*(?:[-*•–+]|\d{1,3}[.)]|\(\w\)|[A-Za-z][.)])\s+")
COMMENT_MARK = re.compile(r"^\s*(?:#(?!\s*#|include)\s?|//+\s?|--\s|;\s)")
QUOTE_MARK = re.compile(r"^[^\S\n]*>\s?(?!>)", re.MULTILINE)
WORD = re.compile(r"[^\W_]+")
_ENDED = re.compile(r"[.!?:;…。！？][\"'”’)\]*_`]*$")
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})")
_RULE = re.compile(r"^\s*(?:\|\s*)?:?--[\s:|-]*$")
_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+\S")
_BOLD = re.compile(r"\s*(\*\*|__)[^*_\n]+\1\s*")
_LINES = re.compile(r"[^\n]*\n?")


class Parts:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Part] = []

    def add(self, kind: int, start: int, end: int) -> None:
        """Adds a part from `start` to `end`. A part without a letter or digit is `NOTHING`."""
        last = self.found[-1][1] if self.found else 0
        if self.text[last:start].strip():
            self.found.append((NOTHING, start))
        if self.text[start:end].strip():
            self.found.append((kind if WORD.search(self.text, start, end) else NOTHING, end))

    def lines(self, kind: int, start: int, end: int) -> None:
        for a, b in line_spans(self.text, start, end):
            self.add(kind, a, b)

    def sentences(self, start: int, end: int) -> None:
        text = self.text[start:end]
        if is_menu(text):
            self.add(NAVIGATION, start, end)
            return
        if _BOLD.fullmatch(text) and is_heading(text):
            self.add(HEADING + _PASSING, start, end)
            return
        for a, b in spans(QUOTE_MARK.sub(lambda match: " " * len(match[0]), text)):
            self.add(SENTENCE, start + a, start + b)

    def whole(self, kind: int, start: int, end: int) -> None:
        """Adds a list item, or a paragraph of a docstring, as one part; as sentences if it is long."""
        if kind == ITEM and is_menu(self.text[start:end]):
            self.add(NAVIGATION, start, end)
        elif len(self.text[start:end].split()) > WHOLE_WORDS:
            for a, b in spans(self.text[start:end]):
                self.add(kind, start + a, start + b)
        else:
            self.add(kind, start, end)

    def table(self, start: int, end: int) -> None:
        """Adds the rows of a table, of which the first names the columns if there are others."""
        rows = [row for row in line_spans(self.text, start, end) if not _RULE.match(self.text[slice(*row)])]
        for number, row in enumerate(rows):
            self.add(ROW if number or len(rows) == 1 else COLUMNS, *row)

    def record(self, start: int, end: int) -> None:
        """Adds the values of a record as one part."""
        if len(self.text[start:end].split()) > WHOLE_WORDS:
            self.lines(ROW, start, end)
        else:
            self.add(ROW, start, end)

    def fence(self, start: int, end: int) -> None:
        lines = list(line_spans(self.text, start, end))
        if sum(_OPTION.match(self.text, *line) is not None for line in lines) > max(1, len(lines) / 2):
            self.plain(start, end)
        elif lines:
            self.add(COMMAND if len(lines) == 1 else CODE, lines[0][0], lines[-1][1])

    def code(self, start: int, end: int, *, settings: bool = False) -> None:
        lines = list(line_spans(self.text, start, end))
        at = 0
        while at < len(lines):
            first = at
            kind = self._kind_of_line(lines[at], settings)
            while at < len(lines) and self._kind_of_line(lines[at], settings) == kind and kind in (COMMENT, CODE):
                at += 1
            if kind == COMMENT and at < len(lines) and self._kind_of_line(lines[at], settings) == SETTING:
                kind = SETTING
            if kind not in (COMMENT, CODE):
                at += 1
            self.add(kind, lines[first][0], lines[at - 1][1])

    def _kind_of_line(self, span: tuple[int, int], settings: bool) -> int:
        line = self.text[slice(*span)]
        if len(line) > _LONGEST_LINE:
            return CODE
        if COMMENT_MARK.match(line):
            return CODE if line.startswith("#!") else COMMENT
        if settings and ITEM_MARK.match(line):
            return ITEM
        if settings and _SECTION_HEAD.match(line):
            return HEADING + _SECTION + _indent(line)
        if settings:
            return SETTING if _SETTING.match(line) else CODE
        return SETTING if is_setting(line) and not line[:1].isspace() else CODE

    def docstring(self, start: int, end: int) -> None:
        """The entries of a section such as `Args:` are parts of their own."""
        at = start
        for part in _EMPTY_LINE.split(self.text[start:end]):
            begin, at = at, at + len(part)
            body = part.strip()
            if not body:
                continue
            begin += len(part) - len(part.lstrip())
            first, _, rest = body.partition("\n")
            if rest and _ARGUMENTS.fullmatch(first):
                self.add(NOTHING, begin, begin + len(first))
                self._entries(begin + len(first) + 1, begin + len(body))
            else:
                self.whole(DOCSTRING, begin, begin + len(body))

    def _entries(self, start: int, end: int) -> None:
        lines = list(line_spans(self.text, start, end))
        least = min(_indent(self.text[slice(*line)]) for line in lines)
        heads = [a for a, b in lines if _indent(self.text[a:b]) == least]
        for head, stop in zip(heads, [*heads[1:], end], strict=True):
            self.add(DOCSTRING, head, stop)

    def plain(self, start: int, end: int, width: int = 0) -> None:
        """Adds the parts of a paragraph of plain text, as its lines tell; `width` as for `Block`."""
        lines = list(line_spans(self.text, start, end))
        kinds = {self._kind_of_line(line, True) for line in lines}
        if {COMMENT, SETTING} <= kinds and CODE not in kinds:
            self.code(start, end, settings=True)
            return
        width = width or max((b - a for a, b in lines), default=0)
        at = 0
        while at < len(lines):
            first, stop = lines[at]
            line = self.text[first:stop]
            if len(line) > _LONGEST_LINE:
                at = self._paragraph(lines, at, width)
            elif _FENCE.match(line):
                rest = range(at + 1, len(lines))
                closed = next((n for n in rest if _FENCE.match(self.text[slice(*lines[n])])), len(lines))
                if closed > at + 1:
                    self.fence(lines[at + 1][0], lines[closed - 1][1])
                at = closed + 1
            elif (end := self._rows(lines, at)) > at:
                self.table(first, lines[end - 1][1])
                at = end
            elif (end := self._columns(lines, at) or self._option(lines, at)) > at:
                at = end
            elif marked := _HEADING.match(line):
                self.add(HEADING + len(marked[1]), first, stop)
                at += 1
            elif is_menu(line):
                self.add(NAVIGATION, first, stop)
                at += 1
            elif _SECTION_HEAD.match(line):
                self.add(HEADING + _SECTION + _indent(line), first, stop)
                at += 1
            elif is_code(line) or is_setting(line):
                at += 1
                while at < len(lines) and is_code(line) and is_code(self.text[slice(*lines[at])]):
                    at += 1
                self.add(CODE if is_code(line) else SETTING, first, lines[at - 1][1])
            else:
                at = self._paragraph(lines, at, width)

    def _rows(self, lines: list[tuple[int, int]], first: int) -> int:
        """Where the rows of a table end that begin at a line: two at least, or one with outer bars; else `first`."""
        at, cells = first, 0
        while at < len(lines):
            line = self.text[slice(*lines[at])]
            found = line.strip().strip("|").count("|") + 1
            if not (_RULE.match(line) and at > first) and (found < 2 or found != (cells or found)):
                break
            cells = cells or found
            at += 1
        barred = at > first and self.text[slice(*lines[first])].lstrip().startswith("|")
        return at if at > first + 1 or barred else first

    def _columns(self, lines: list[tuple[int, int]], first: int) -> int:
        """Adds lines that have a name and, below each other, what it means, such as a list of options; returns the line
        after them, 0 if there are none."""
        rows, column, at = list[int](), 0, first
        while at < len(lines):
            line = self.text[slice(*lines[at])].expandtabs()
            if not (rows and _indent(line, 8) >= column):  # else it continues the meaning
                found = _COLUMN.match(line)
                begins = found is not None and found.end() == (column or found.end())
                begins = begins or (column > 0 and _OPTION.match(line) is not None)  # too long a name for its column
                if not begins or any(other(line) for other in (*_MARKED, is_code, is_setting)):
                    break
                column = column or (found.end() if found is not None else 0)
                rows.append(at)
            at += 1
        if at - first < 2 and not (rows and _OPTION.match(self.text, *lines[first])):
            return 0
        for row, end in zip(rows, [*rows[1:], at], strict=True):
            self.whole(ITEM, lines[row][0], lines[end - 1][1])
        return at

    def _option(self, lines: list[tuple[int, int]], first: int) -> int:
        """Adds an option whose description hangs below it; returns the line after them, 0 if there is none."""
        option, at = self.text[slice(*lines[first])], first + 1
        if not _OPTION.match(option) or len(option.split()) > _HEADING_WORDS:
            return 0
        while at < len(lines) and _indent(self.text[slice(*lines[at])]) > _indent(option):
            at += 1
        if at == first + 1:
            return 0
        if at < len(lines):  # one of a list
            self.whole(ITEM, lines[first][0], lines[at - 1][1])
        else:
            self.add(HEADING + DESCRIBED, *lines[first])
            self.sentences(lines[first + 1][0], lines[at - 1][1])
        return at

    def _paragraph(self, lines: list[tuple[int, int]], first: int, width: int) -> int:
        """Adds a list item, or the wrapped lines of a paragraph; returns the line after it."""
        begin = before = self.text[slice(*lines[first])]
        item, at, below = ITEM_MARK.match(begin) is not None, first + 1, ""
        while at < len(lines):
            below = self.text[slice(*lines[at])]
            hangs = item and not ITEM_MARK.match(below) and _indent(below) > _indent(begin)
            if not (hangs or continues(before, below, width)):
                break
            at, before, below = at + 1, below, ""
        start, end = lines[first][0], lines[at - 1][1]
        leads = len(below.split()) > _FEW_WORDS and not ITEM_MARK.match(below) and not below[:1].isspace()
        if item and not (leads and is_heading(ITEM_MARK.sub("", self.text[start:end]))):
            self.whole(ITEM, start, end)
        elif item or is_heading(self.text[start:end]):
            self.add(HEADING + _PASSING, start, end)
        else:
            self.sentences(start, end)
        return at


def parts_of(block: Block) -> list[Part]:
    """The parts of a block: those that its reader has given, or else by its kind and its lines."""
    if block.parts is not None:
        return list(block.parts)
    parts = Parts(block.text)
    end = len(block.text)
    if (add := _BY_KIND.get(block.kind)) is not None:
        add(parts, block, end)
    else:
        parts.plain(0, end, width=block.width)
    return parts.found


_BY_KIND: dict[str, Callable[[Parts, Block, int], None]] = {
    "heading": lambda parts, block, end: parts.add(HEADING + max(1, len(block.path)), 0, end),
    "columns": lambda parts, _, end: parts.add(COLUMNS, 0, end),
    "item": lambda parts, _, end: parts.whole(ITEM, 0, end),
    "fields": lambda parts, _, end: parts.lines(SETTING, 0, end),
    "code": lambda parts, _, end: parts.code(0, end),
    "settings": lambda parts, _, end: parts.code(0, end, settings=True),
    "paragraph": lambda parts, _, end: parts.sentences(0, end),
    "row": lambda parts, _, end: parts.record(0, end),
    "table": lambda parts, _, end: parts.table(0, end),
}


def recognised(text: str) -> list[Part]:
    parts = Parts(text)
    start, width = 0, max(map(len, text.split("\n")))
    for end in [*(match.start() for match in _EMPTY_LINE.finditer(text)), len(text)]:
        parts.plain(start, end, width)
        start = end
    return parts.found


def packed_parts(parts: Iterable[Part]) -> bytes:
    """Parts as bytes: each kind, and each distance from the end before, in groups of seven bits, lowest first."""
    out, before = bytearray(), 0
    for kind, end in parts:
        for number in (kind, end - before):
            while number > 127:
                out.append(number & 127 | 128)
                number >>= 7
            out.append(number)
        before = end
    return bytes(out)


def unpacked_parts(data: bytes | None) -> tuple[Part, ...]:
    numbers, number, shift = list[int](), 0, 0
    for byte in data or b"":
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    found, end = list[Part](), 0
    for kind, length in zip(numbers[::2], numbers[1::2], strict=True):
        end += length
        found.append((kind, end))
    return tuple(found)


_LONGEST_LINE = 400
"""A longer line is no code, menu or heading. Patterns of lines may take time in the square of their length."""

WHOLE_WORDS = 60  # List items, records and docstring paragraphs of more words than this are no single statement.
_EMPTY_LINE = re.compile(r"(\n[ \t]*\n)")
_ARGUMENTS = re.compile(r"\s*\w+:")
_OPTION = re.compile(r"[ \t]*(?:--?|\+)[^\W_][^\n]*")
"""A line that begins with the name of an option."""

_COLUMN = re.compile(r"[ \t]*\S(?:[^\n]{0,40}?\S)?(?: {2,}|\t+)(?=\S)")
"""A name, and the gap before its meaning."""

_MARKED = ITEM_MARK.match, COMMENT_MARK.match
_SECTION_HEAD = re.compile(r"^\s*\[[\w. \"-]+\]\s*$|^\s*[\w-]+:\s*$")
"""The head of a section of a configuration file: `[mail]` or `mail:`."""

_CODE = re.compile(
    r"^\s*(?:[$%]\s|>>>|#include|/\*|\*/|@\w[\w.]*(?:\(.*\))?$|[{}()\[\];,]+$)"
    r"|^\s*(?:\S+\s+){0,2}\S*[;{}]$|^[^=()\[\]]*[=()\[\]].*[;{}]$|^.*(?:\)\s*->.*|=>.*)$|^\s*[\w.]+\(.*\)\s*$"
    r"|^\s*(?:def|class|import|from|return|if|for|while|fn|let|const)\b.*[{;:(]$|^\s+[\w.]+ [-+*/|]?= .*"
)
_SETTING = re.compile(r"^\s*(?:export\s+|ENV\s+)?[\"']?[A-Za-z_][\w.-]*[\"']?\s*(?::[\w\[\],\s.|]+=|=|:(?=\s))\s*\S.*$")
_NAMED = re.compile(r"^\s*[a-z_][\w.-]*:\s")
_SETTING_CHARS, _SETTING_WORDS = 120, 6
_CALL = re.compile(r"[\w\])]\(.*\)?\s*$")
_LABEL = re.compile(r"^[A-Z][\w'-]*(?: [\w'-]+){0,3}: ")
_MENU = re.compile(r"(?<!\s)\s+(?:[|·•›»/>]|[-–])\s+|(?:(?<!\s)\s+|)[|·•›»]\s*")
_MENU_WORDS = 3
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]*\)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{2,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])")
_BARE_LINKS = re.compile(r"\s*(?:\[[^\]]+\]\s*){2,}")
_ALPHABET = re.compile(r"\s*(?:\w\s+){6,}\w\s*")
_VALUE = re.compile(r"\d|[@$€£%]")

_WRAPPED, _CONTINUED = 60, 25
"""Characters of a line that continues although no sentence ends, as wrapped lines do; and if a small letter follows."""

_FULL = 0.85  # The share of the longest line's width that a wrapped line fills at least.
_HEADING_WORDS, _FEW_WORDS = 10, 5


def continues(last: str, line: str, width: int = 0) -> bool:
    """Whether a line continues the sentence of the `last` one: a capital does so only if its first word would not have
    fitted into `width` there."""
    last = last.rstrip()
    if not last or not line.strip() or _ENDED.search(last) or ITEM_MARK.match(line) or _LABEL.match(line):
        return False
    if line.lstrip().startswith("|") or last.lstrip().startswith("|"):
        return False
    if line.lstrip()[:1].islower():
        return len(last) >= _CONTINUED
    return len(last) >= _WRAPPED and len(last) + 1 + len(line.split()[0]) > _FULL * width


def is_code(line: str) -> bool:
    return len(line) <= _LONGEST_LINE and _CODE.match(line) is not None


def is_setting(line: str) -> bool:
    if len(line) > _SETTING_CHARS or _SETTING.match(line) is None or _ENDED.search(line.rstrip()):
        return False
    if "=" in line.partition('"')[0]:
        return not line[:1].isspace() and not _CALL.search(line) and not line.rstrip().endswith(("(", "[", "{", "\\"))
    return _NAMED.match(line) is not None and len(line.split()) <= _SETTING_WORDS


def is_heading(text: str) -> bool:
    words = len(WORD.findall(text))
    return words < _HEADING_WORDS and not _ENDED.search(text.rstrip()) and not _VALUE.search(text) and ":" not in text


def is_listing(text: str) -> bool:
    """Whether most lines have a name and its meaning."""
    lines = text.split("\n")
    return sum(_COLUMN.match(line) is not None for line in lines) > max(1, len(lines) / 2)


def is_menu(line: str) -> bool:
    """Whether a text holds only links, short names between bars, or the alphabet."""
    if len(line) > _LONGEST_LINE:
        return False
    if _LINK.search(line) and not WORD.search(_LINK.sub("", line)):
        return True
    bare = re.sub(r"\[([^\]]*)\](?!\()", r"\1 |", line) if _BARE_LINKS.fullmatch(line) else line
    bare = re.sub(r"^\s*>\s+", "", unmarked(bare)).rpartition(":")[2]
    parts = [part.strip() for part in _MENU.split(bare) if part.strip()]
    names = all(len(part.split()) <= _MENU_WORDS + (len(parts) > 2) and not _VALUE.search(part) for part in parts)
    return (len(parts) >= 2 and names and not _ENDED.search(line.rstrip())) or _ALPHABET.fullmatch(line) is not None


def unmarked(text: str) -> str:
    """A text on one line, without the Markdown marks of links and emphasis."""
    return " ".join(_EMPHASIS.sub(r"\2", _LINK.sub(r"\1", text)).split())


_MARKS = re.compile(
    r"^[ \t]*(?:(?:#{1,6}|>+)[ \t]+|(?:`{3,}|~{3,}|[-=|:][-=|: \t]{2,}$)[^\n]*\n?|\|[ \t]*)"
    r"|(?<![ \t])[ \t]*\|[ \t]*$",
    re.MULTILINE,
)


def plain(text: str) -> str:
    """A text on one line, without Markdown's marks of headings, quotations, fences, tables, links and emphasis."""
    return unmarked(_MARKS.sub("", text))


def _indent(line: str, tab: int = 4) -> int:
    return len(line[: len(line) - len(line.lstrip())].expandtabs(tab))


def line_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in _LINES.finditer(text, start, end):
        if match[0].strip():
            yield match.start(), match.end() - match[0].endswith("\n")
