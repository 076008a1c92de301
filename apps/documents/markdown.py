"""Markdown: headings, paragraphs, lists, tables, code, front matter; every block with the lines it stands on.

Only the block structure is parsed. Chunks hold the source as it stands, so that a line number means the same in the
file, in the snippet and in an editor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from edge.apps.documents.base import Block, Document
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.outline import Outline
from edge.apps.documents.plain import paragraphs

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_LINES = frozenset({"fence", "code_block", "table_open", "html_block"})
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?:[^\n]*\n){0,400}?\1[ \t]*(?:\n|$)")
_FRONT_TITLE = re.compile(r"^title[ \t]*[:=][ \t]*[\"']?([^\n\"']{1,200})", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_LONGEST_HEADING = 300


def extract(file: OpenedFile) -> Document:
    """Reads a Markdown file."""
    decoded = file.text()
    lines = decoded.text.split("\n")
    front = _FRONT_MATTER.match(decoded.text)
    blocks: list[Block] = []
    title, first = "", 0
    if front is not None:
        first = front[0].rstrip("\n").count("\n") + 1
        blocks += paragraphs(lines, 0, first, (), kind="lines")
        titled = _FRONT_TITLE.search(front[0])
        title = titled[1].strip() if titled else ""
    blocks += markdown_blocks(lines, Outline(), first)
    title = title or next((block.path[-1] for block in blocks if block.kind == "heading"), "")
    return Document(title, blocks, decoded.encoding)


def markdown_blocks(lines: list[str], outline: Outline, first: int = 0) -> Iterator[Block]:
    """Blocks of the lines from `first` (counted from 0) on, all of their visible characters in them.

    Args:
        outline: the headings in force; follows those that come.
    """
    tokens = _parser().parse("\n".join(lines[first:]))
    done = first
    for index, token in enumerate(tokens):
        if token.level or token.map is None or not token.type.endswith(("_open", "fence", "_block")):
            continue
        start, end = first + token.map[0], first + token.map[1]
        yield from paragraphs(lines, done, start, outline.path, kind="lines")  # link definitions leave no token
        done = end
        while end > start and not lines[end - 1].strip():
            end -= 1
        if token.type == "heading_open":
            path = outline.enter(int(token.tag[1:]), _heading(tokens[index + 1].content))
            yield Block("\n".join(lines[start:end]).rstrip(), start + 1, end, kind="heading", path=path)
        elif end > start:
            kind = "lines" if token.type in _LINES else "prose"
            yield Block("\n".join(lines[start:end]).rstrip(), start + 1, end, kind=kind, path=outline.path)
    yield from paragraphs(lines, done, len(lines), outline.path, kind="lines")


def _heading(source: str) -> str:
    """A heading's text without the marks of links, emphasis and code."""
    text = _LINK.sub(r"\1", source[:_LONGEST_HEADING])
    return " ".join(re.sub(r"[*`]|<[^<>]*>", "", text).split())


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser
