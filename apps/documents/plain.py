"""Plain text and reStructuredText: paragraphs between blank lines, under titles that are underlined with punctuation.
Directives are not executed, and every line keeps its number. A test verifies the titles of reStructuredText with
docutils."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from edge.apps.documents.base import Block, DocumentBlocks, Outline, first_heading
from edge.apps.documents.kinds import DESCRIBED, HEADING, NOTHING, Part, Parts, is_listing
from edge.apps.documents.opened import OpenedFile

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+\s*")
_LONGEST_TITLE = 200
_SHORTEST_RULE = 4
_WRAPPED_CHARS = 40  # A line is wrapped only if it has a space behind so many characters.
_PROSE_LETTERS = 0.87


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    blocks = text_blocks(text)
    return DocumentBlocks(first_heading(blocks), blocks)


def text_blocks(text: str, *, short: bool = False) -> list[Block]:
    lines = text.split("\n")
    width = max((len(line) for line in lines if " " in line[_WRAPPED_CHARS:]), default=0)
    return list(sections(lines, titles(lines, short=short), width=width))


def sections(lines: Sequence[str], titles: Iterable[Title], *, width: int = 0) -> Iterator[Block]:
    """The titles, and the paragraphs under each."""
    outline = Outline()
    at = 0
    for title in titles:
        yield from paragraphs(lines, at, title.first, outline.path, width=width)
        path = outline.enter(title.level, title.text)
        heading = "\n".join(lines[title.first : title.end]).rstrip()
        yield Block(heading, title.first + 1, title.end, kind="heading", path=path)
        at = title.end
    yield from paragraphs(lines, at, len(lines), outline.path, width=width)


def paragraphs(
    lines: Sequence[str], first: int, end: int, path: tuple[str, ...], *, kind: str | None = None, width: int = 0
) -> Iterator[Block]:
    """Each run of lines that are not blank becomes a block; `first` and `end` count from 0."""
    start = first
    for at in range(first, end + 1):
        if at == end or not lines[at].strip():
            if start < at:
                text = "\n".join(lines[start:at]).rstrip()
                found = kind or ("prose" if _is_prose(text) else "lines")
                yield Block(text, start + 1, at, kind=found, path=path, width=width)
            start = at + 1


def _is_prose(text: str) -> bool:
    """Prose has 95 % letters among its visible characters; code, tables and logs have 80 % or less."""
    if "\n" not in text:
        return True
    if is_listing(text):
        return False
    visible = "".join(text.split())
    return sum(map(str.isalpha, visible)) >= _PROSE_LETTERS * len(visible)


@dataclass(frozen=True, slots=True)
class Title:
    """A title, its lines from `first` up to `end` (counted from 0, with the lines of punctuation), and its level by the
    order in which styles of adornment occur."""

    text: str
    first: int
    end: int
    level: int


def titles(lines: Sequence[str], *, short: bool = False) -> Iterator[Title]:
    """A title is a line at the left margin after a blank line, underlined by one repeated mark that is at least as
    long; with such a line above it may be indented (reStructuredText specification, "Sections"). With `short` four
    marks may underline any title, as docutils accepts with a warning."""
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
    """The line after a title that begins at line `at`, and its style; 0 if none does."""
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


_LITERAL = re.compile(
    r"\s*\.\. (?:[\w.+-]+:)?(?:code|code-block|sourcecode|math|parsed-literal|productionlist|graphviz)::"
)


def extract_rst(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    blocks = list(_with_literals(text_blocks(text, short=True)))
    return DocumentBlocks(first_heading(blocks), blocks)


def _with_literals(blocks: Sequence[Block]) -> Iterator[Block]:
    """Marks blocks as code if they are indented under `::` or a code directive, and directives as lines. Comments are
    left out."""
    margin: int | None = None
    unseen = False
    for block in blocks:
        indent = len(block.text) - len(block.text.lstrip())
        if margin is not None and (block.kind == "heading" or indent <= margin):
            margin, unseen = None, False
        if block.kind == "heading":
            yield block
            continue
        if unseen:
            continue
        if margin is None and _COMMENT.match(block.text):
            unseen = "\n" in block.text or block.text.strip() != ".."  # an empty one ends at once
            margin = indent if unseen else margin
            continue
        marked = block.text.lstrip().startswith((".. ", ":", "+--", "=="))
        kind = "code" if margin is not None else "lines" if marked else block.kind
        parts = _directives(block.text) if kind == "lines" else block.parts
        yield block if (kind, parts) == (block.kind, block.parts) else replace(block, kind=kind, parts=parts)
        if margin is None and (_LITERAL.match(block.text) or (block.text.endswith("::") and not marked)):
            margin = indent


_COMMENT = re.compile(
    r"[ \t]*\.\.(?:[ \t]+(?!_[^\n]*:|\[[^\]\n]+\][ \t]|\|[^|\n]+\||[\w.:+-]+ ?::)[^\n]*|[ \t]*)(?:\n[ \t][^\n]*)*\Z"
)
_DIRECTIVE = re.compile(
    r"^[ \t]*\.\. (?:_[^\n]*:|(?P<domain>[\w.+-]+:)?(?P<name>[\w.+-]+)::)[ \t]*(?P<argument>[^\n]*)\n?"
    r"(?P<options>(?:[ \t]+:[\w -]+:[^\n]*(?:\n|$))*)",
    re.MULTILINE,
)
_SAID = re.compile(
    r"note|warning|tip|hint|important|caution|danger|attention|error|seealso|admonition|deprecated|version\w+"
)
_NAMED = re.compile(r"option|envvar|confval|setting|data|function|class|method|attribute|describe|program")


def _directives(text: str) -> tuple[Part, ...] | None:
    """What a directive says, or the name that it describes as a heading; None if no directive begins the block."""
    if _DIRECTIVE.match(text) is None:
        return None
    parts = Parts(text)
    found = list(_DIRECTIVE.finditer(text))
    for match, end in zip(found, [*(each.start() for each in found[1:]), len(text)], strict=True):
        parts.add(NOTHING, match.start(), match.start("argument"))
        if _SAID.fullmatch(match["name"] or ""):
            parts.sentences(match.start("argument"), end)
            continue
        if match["domain"] or _NAMED.fullmatch(match["name"] or ""):
            parts.add(HEADING + DESCRIBED, *match.span("argument"))
        parts.add(NOTHING, parts.found[-1][1], match.end())
        parts.plain(match.end(), end)
    return tuple(parts.found)
