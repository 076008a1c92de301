"""DOCX: headings, paragraphs, tables, text boxes and notes of the main text. Lines are paragraphs and table rows.

The parts are read directly. This unpacks no pictures, includes the text of content controls and text boxes, and leaves
out text that was deleted under change tracking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge.apps.documents.archive import Archive, attribute, local, outermost
from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.apps.documents.meaningful_title import meaningful
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.outline import Outline

_LEFT_OUT = frozenset({
    "del", "moveFrom", "Fallback", "instrText", "delText", "pPr", "rPr", "tblPr", "sectPr", "object",
})  # fmt: skip
_PIECES = frozenset({"t", "tab", "ptab", "br", "cr", "noBreakHyphen", "txbxContent"})
_MOST_BASES = 20


def extract(file: OpenedFile) -> Document:
    """Reads a DOCX file.

    Raises:
        InputError: the file is damaged.
        Skipped: the file is encrypted or has no text.
    """
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "word/document.xml"
        document = archive.xml(main)
        styles = archive.related(main, "styles")
        reader = _Reader(_heading_levels(archive.xml(styles)) if styles in archive.names else {})
        reader.read(document)
        for kind in ("footnotes", "endnotes"):
            notes = archive.related(main, kind)
            if notes in archive.names:
                reader.read(archive.xml(notes))
        title = archive.title()
    if not reader.blocks:
        raise Skipped(Reason.NO_TEXT, "the document has no text")
    first = next((block.path[-1] for block in reader.blocks if block.kind == "heading"), "")
    return Document(meaningful(title) or first, reader.blocks)


class _Reader:
    """Converts paragraphs and tables to blocks, in document order."""

    def __init__(self, levels: dict[str, int]) -> None:
        self.blocks: list[Block] = []
        self._levels = levels
        self._outline = Outline()
        self._line = 0

    def read(self, element: Any) -> None:
        """Reads the paragraphs and tables below an element, in order. Iterative: deep nesting needs no stack."""
        waiting = [element]
        while waiting:
            found = waiting.pop()
            name = local(found)
            boxes: list[Any] = []
            if name == "p":
                self._paragraph(found, boxes)
            elif name == "tbl":
                self._table(found, boxes)
            elif name not in _LEFT_OUT:
                waiting += reversed(found)
            waiting += reversed(boxes)

    def _paragraph(self, paragraph: Any, boxes: list[Any]) -> None:
        text = _text(paragraph, boxes)
        if text:
            self._line += 1
            level = self._level(paragraph)
            lines = (self._line,) * (text.count("\n") + 1)
            path = self._outline.enter(level, " ".join(text.split())) if level else self._outline.path
            kind = "heading" if level else "prose"
            self.blocks.append(Block(text, self._line, self._line, kind=kind, path=path, lines=lines))

    def _table(self, table: Any, boxes: list[Any]) -> None:
        """Reads a table's rows as one block. Rows of a table inside a cell follow the cell's row."""
        rows = []
        for row in _rows(table):
            cells = [cell for cell in row.iter("{*}tc") if next(cell.iterancestors("{*}tr")) is row]
            texts = [" ".join(" ".join(_own_paragraphs(cell, boxes)).split()) for cell in cells]
            if any(texts):
                rows.append(" | ".join(texts).rstrip())
        if rows:
            first = self._line + 1
            self._line += len(rows)
            self.blocks.append(Block("\n".join(rows), first, self._line, kind="lines", path=self._outline.path))

    def _level(self, paragraph: Any) -> int:
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return 0
        level = _outline_level(properties)
        style = properties.find("{*}pStyle")
        if level is None and style is not None:
            level = self._levels.get(attribute(style, "val") or "", 0)
        return level or 0


def _rows(table: Any) -> Iterator[Any]:
    """Rows of a table and of the tables in its cells, but not of tables in text boxes."""
    waiting = [table]
    while waiting:
        found = waiting.pop()
        name = local(found)
        if name == "tr":
            yield found
        if name != "txbxContent" and name not in _LEFT_OUT:
            waiting += reversed(found)


def _own_paragraphs(cell: Any, boxes: list[Any]) -> Iterator[str]:
    """Texts of a cell's paragraphs, without the tables and text boxes inside the cell."""
    for paragraph in outermost(cell, {"p"}, _LEFT_OUT | {"tbl"}):
        yield _text(paragraph, boxes)


def _text(paragraph: Any, boxes: list[Any]) -> str:
    """A paragraph's text; text boxes that are anchored in the paragraph are appended to `boxes`."""
    parts: list[str] = []
    for found in outermost(paragraph, _PIECES, _LEFT_OUT):
        name = local(found)
        if name == "t":
            parts.append(found.text or "")
        elif name in ("tab", "ptab"):
            parts.append("\t")
        elif name in ("br", "cr"):
            parts.append("\n")
        elif name == "noBreakHyphen":
            parts.append("-")
        else:
            boxes.append(found)
    lines = (line.strip() for line in clean("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line)


def _heading_levels(styles: Any) -> dict[str, int]:
    """Heading levels by style id: from the style's name, its outline level, or the style it is based on."""
    own: dict[str, int | None] = {}
    base: dict[str, str] = {}
    for style in styles.iter("{*}style"):
        identity = attribute(style, "styleId") or ""
        name, based, properties = style.find("{*}name"), style.find("{*}basedOn"), style.find("{*}pPr")
        own[identity] = _named_level((attribute(name, "val") or "").lower() if name is not None else "")
        if own[identity] is None and properties is not None:
            own[identity] = _outline_level(properties)
        if based is not None:
            base[identity] = attribute(based, "val") or ""
    levels = {}
    for identity in own:
        at, level = identity, own[identity]
        for _ in range(_MOST_BASES):
            if level is not None or at not in base:
                break
            at = base[at]
            level = own.get(at)
        if level:
            levels[identity] = level
    return levels


def _named_level(name: str) -> int | None:
    """The heading level that a built-in style's name states. Such names are English in every language of Word."""
    if name == "title":
        return 1
    return int(name[8:]) if name.startswith("heading ") and name[8:].isdecimal() else None


def _outline_level(properties: Any) -> int | None:
    """1 to 9 for a heading, 0 for body text, None if the properties state no level."""
    element = properties.find("{*}outlineLvl")
    value = attribute(element, "val") if element is not None else None
    if value is None or not value.isdecimal():
        return None
    return int(value) + 1 if int(value) < 9 else 0
