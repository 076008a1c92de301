"""Plain text: paragraphs between blank lines, under titles that a line of punctuation marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge.apps.documents.adornment import titles
from edge.apps.documents.base import Block, Document
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.outline import Outline

_PROSE_LETTERS = 0.87


def extract(file: OpenedFile) -> Document:
    """Reads a text file."""
    decoded = file.text()
    blocks = text_blocks(decoded.text)
    title = next((block.path[-1] for block in blocks if block.kind == "heading"), "")
    return Document(title, blocks, decoded.encoding)


def text_blocks(text: str, *, short: bool = False) -> list[Block]:
    """The blocks of a text, all of its visible characters in them; `short` as in `titles`."""
    lines = text.split("\n")
    blocks: list[Block] = []
    outline = Outline()
    at = 0
    for title in titles(lines, short=short):
        blocks += paragraphs(lines, at, title.first, outline.path)
        path = outline.enter(title.level, title.text)
        heading = "\n".join(lines[title.first : title.end]).rstrip()
        blocks.append(Block(heading, title.first + 1, title.end, kind="heading", path=path))
        at = title.end
    blocks += paragraphs(lines, at, len(lines), outline.path)
    return blocks


def paragraphs(
    lines: Sequence[str], first: int, end: int, path: tuple[str, ...], *, kind: str | None = None
) -> Iterator[Block]:
    """Runs of lines that are not blank, each a block; `first` and `end` count from 0. Without a `kind` each is judged
    by itself."""
    start = first
    for at in range(first, end + 1):
        if at == end or not lines[at].strip():
            if start < at:
                text = "\n".join(lines[start:at]).rstrip()
                yield Block(text, start + 1, at, kind=kind or ("prose" if _is_prose(text) else "lines"), path=path)
            start = at + 1


def _is_prose(text: str) -> bool:
    """Whether a paragraph is made of sentences rather than of lines: letters are 95 % of what is printed in prose, and
    80 % or less in code, tables and logs."""
    if "\n" not in text:
        return True
    visible = "".join(text.split())
    return sum(map(str.isalpha, visible)) >= _PROSE_LETTERS * len(visible)
