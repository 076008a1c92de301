"""`Unit`: a part of a passage that holds one statement; and what tells units apart: kinds of lines, records, list
items and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from edge.text.sentences import spans

ENDED = re.compile(r"[.!?:;…。！？][\"'”’)\]*_`]*$")
ITEM = re.compile(r"^\s*(?:[-*•–+]|\d{1,3}[.)]|\(\w\)|[A-Za-z][.)])\s+")
FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})")
RULE = re.compile(r"^\s*\|?\s*:?-{2,}[\s:|-]*$")
"""A rule, which separates the head of a table from its rows, or one part of a text from the next."""

DOCSTRING = re.compile(r"^\s*[rRuUbBfF]{0,2}(\"\"\"|\'\'\')")
SECTION = re.compile(r"^\s*\[[\w. \"-]+\]\s*$|^\s*[\w-]+:\s*$")
"""The head of a section of a configuration file: `[mail]` or `mail:`."""

COMMENT = re.compile(r"^\s*(?:#(?!\s*#|include)\s?|//+\s?|--\s|;\s)")
WORD = re.compile(r"[^\W_]+")
INDENTED = re.compile(r"^(?: {4}|\t)")

_KEYWORDS = (
    "fn|let|def|class|import|from|use|pub|impl|return|const|var|public|static|if|for|while|elif|else|try|except|raise"
    "|with|async|function|yield"
)
_CODE = re.compile("|".join((
    r"^\s*[$%]\s",  # a command behind a prompt
    r"^\s*>>>",
    r"^\s*(?:#include|/\*|\*/|<\w+[^>]*>$|@\w[\w.]*(?:\(.*\))?$|[{}()\[\];,]+$)",
    rf"^\s*(?:{_KEYWORDS})\b.*[{{;:(]$",
    r"^\s*(?:import [\w.]+(?: as \w+)?|from [\w.]+ import .+|return\b.*[\w)\]}\"']|raise \w+\(.*)$",
    r"^\s*(?:fi|done|esac|set -\w+)$",
    r"^(?:\s*\S+){0,3}\s*[;{}]$",  # the end of a statement or block
    r"^.*[=()\[\]].*[;{}]$",
    r"^.*(?:\)\s*->.*|=>.*)$",
    r"^\s*[\w.]+\(.*\)\s*$",  # a call
    r"^.*\w\([^ )]*\)\s*$",
    r"^\s*[\w.]+\(.*[(,]\s*$",
    r"^\s+[\w.]+(?:, [\w.]+)* = .*",  # an assignment within a block
    r"^\s*\w+ [-+*/|]= .*",
    r"^\s*(?:self|this)[.]\w.*",
)))  # fmt: skip
_COMMAND = re.compile(r"^\s*[\w./-]+(?: \S+)* (?:--?\w[\w-]*|\"?\$\{?\w+|&&)(?: |=|/|:|\"|$)")
"""A line of a shell script."""

_SETTING = re.compile(
    r"^\s*(?:export\s+|ENV\s+)?[\"']?[A-Za-z_][\w.-]*[\"']?(?:\s*:\s*[\w\[\], .|]+)?\s*(?:=|:(?=\s))\s*\S.*$"
)
_SETTING_CHARS = 120
_SETTING_WORDS = 6
_CALL = re.compile(r"[\w\])]\(.*\)?\s*$")
_LABEL = re.compile(r"^[A-Z][\w'-]*(?: [\w'-]+){0,3}: ")
_MENU = re.compile(r"\s+(?:[|·•›»/>]|[-–])\s+|\s*[|·•›»]\s*")
_MENU_WORDS = 3
_CELLS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]*\)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{2,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])")
_BARE_LINKS = re.compile(r"\s*(?:\[[^\]]+\]\s*){2,}")
_ALPHABET = re.compile(r"\s*(?:\w\s+){6,}\w\s*")
_VALUE = re.compile(r"\d|[@$€£%]")

_WRAPPED = 60
_CONTINUED = 25
"""A line that does not end a sentence continues in the next line if it has at least `_WRAPPED` characters, as wrapped
lines do. If the next line begins with a small letter, `_CONTINUED` characters are enough."""

_FULL = 0.85
"""The share of the longest line's width that a wrapped line fills at least."""

HEADING_WORDS = 10


def continues(last: str, line: str, width: int = 0) -> bool:
    """Whether a line continues the sentence of the line before.

    Args:
        last: the line before.
        width: the width of the passage's longest line. A line that begins with a capital continues the line before
            only if its first word would not have fitted there.
    """
    last = last.rstrip()
    if not last or not line.strip() or ENDED.search(last) or ITEM.match(line) or _LABEL.match(line):
        return False
    if line.lstrip().startswith("|") or last.lstrip().startswith("|"):
        return False
    if line.lstrip()[:1].islower():
        return len(last) >= _CONTINUED
    return len(last) >= _WRAPPED and len(last) + 1 + len(line.split()[0]) > _FULL * width


def is_code(line: str) -> bool:
    """Whether a line looks like a statement of a program or of a shell script."""
    return _CODE.match(line) is not None or _COMMAND.match(line) is not None


def is_setting(line: str) -> bool:
    """Whether a line gives a value to a name, like a line of a configuration file or a constant."""
    if _SETTING.match(line) is None or ENDED.search(line.rstrip()) or len(line) > _SETTING_CHARS:
        return False
    if "=" in line.partition('"')[0]:
        return not line[:1].isspace() and not _CALL.search(line) and not line.rstrip().endswith(("(", "[", "{", "\\"))
    return re.match(r"^\s*[a-z_][\w.-]*:\s", line) is not None and len(line.split()) <= _SETTING_WORDS


def is_heading(text: str) -> bool:
    """Whether a part of a text is as short as a heading, does not end like a sentence, and holds no value."""
    words = len(WORD.findall(text))
    return words < HEADING_WORDS and not ENDED.search(text.rstrip()) and not _VALUE.search(text) and ":" not in text


def is_menu(line: str) -> bool:
    """Whether a line holds only links, short names between bars, or the alphabet."""
    if _LINK.search(line) and not WORD.search(_LINK.sub("", line)):
        return True
    bare = re.sub(r"\[([^\]]*)\](?!\()", r"\1 |", line) if _BARE_LINKS.fullmatch(line) else line
    bare = re.sub(r"^\s*>\s+", "", plain(bare)).rpartition(":")[2]
    parts = [part.strip() for part in _MENU.split(bare) if part.strip()]
    names = all(len(part.split()) <= _MENU_WORDS + (len(parts) > 2) and not _VALUE.search(part) for part in parts)
    between = len(parts) >= 2 and names and not ENDED.search(line.rstrip())
    return between or _ALPHABET.fullmatch(line) is not None


def cells(line: str) -> list[str]:
    """The cells of a table row; the whole line as one cell if it is no table row."""
    line = line.strip()
    if "|" not in line:
        return [line]
    return [plain(cell) for cell in _CELLS.split(line.strip("|") if line.startswith("|") else line)]


def plain(text: str) -> str:
    """A text on one line, without the Markdown marks of links and emphasis."""
    return " ".join(_EMPHASIS.sub(r"\2", _LINK.sub(r"\1", text)).split())


def indent(line: str) -> int:
    """The number of white-space characters at the beginning of a line."""
    return len(line) - len(line.lstrip())


def is_comment_above(line: str, below: str) -> bool:
    """Whether `# words` is a comment of a configuration file or script, and not a heading: it ends like a sentence, or
    the line below it is a setting, code or another comment."""
    if not line.lstrip().startswith("# "):
        return False
    if line.rstrip().endswith(".") or line.startswith((" ", "\t")):
        return True
    return bool(below.strip()) and (
        is_setting(below) or is_code(below) or SECTION.match(below) is not None or below.startswith("# ")
    )


_INDEX = re.compile(r"\[\d+\]\.?")
_FIELD = re.compile(r"([^\s:][^:]*): \S")
_MOST_WORDS = 60
"""A longer record is not one statement. Each of its values stands alone."""


def records(lines: Sequence[str]) -> dict[int, int]:
    """The index of the first line of each record, and the index behind its last line.

    A record has two lines at least. At least half of its names are those of a line `name | name | name` or of other
    records: the rows of a table may lack values.

    >>> records(["name: Lena", "birthday: 3 May", "", "name: Tom", "birthday: 9 June", "", "Note: none", "See: above"])
    {0: 2, 3: 5}
    """
    headers: set[str] = set().union(*(cells(line) for line in lines if "|" in line))
    found: list[tuple[int, int, set[str]]] = []
    for first, end in _paragraphs(lines):
        fields = [_FIELD.match(_INDEX.sub("", line)) for line in lines[first:end]]
        names = {field[1] for field in fields if field}
        if all(fields):
            found.append((first, end, names))
    return {
        first: end
        for number, (first, end, names) in enumerate(found)
        if end - first > 1
        and sum(len(line.split()) for line in lines[first:end]) <= _MOST_WORDS
        and 2 * len(names & headers.union(*(others for _, _, others in found[:number] + found[number + 1 :])))
        >= len(names)
    }


def one_row(lines: Sequence[str]) -> str:
    """A record on one line, without its own index: `[0].name: Kim` is `name: Kim`."""
    return ", ".join(_INDEX.sub("", line, count=1) if _INDEX.match(line) else line for line in lines)


def _paragraphs(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The index of the first line of each paragraph, and the index behind its last line."""
    first = 0
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            if number > first:
                yield first, number
            first = number + 1


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
