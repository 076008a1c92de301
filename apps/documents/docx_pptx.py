"""DOCX and PPTX: the texts of Word's documents and PowerPoint's slides.

Of a DOCX file, the headings, paragraphs, tables, text boxes and notes of the main text are read. Lines are paragraphs
and table rows. Of a PPTX file, each slide is a page under its title, followed by its notes. Lines are paragraphs
and table rows of a slide.

The parts are read directly. This unpacks no pictures, includes the text of content controls and text boxes, and leaves
out text that was deleted under change tracking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge.apps.documents.archive import Archive, attribute, local, outermost
from edge.apps.documents.base import Block, DocumentBlocks, Outline, Reason, Skipped, first_heading, meaningful
from edge.apps.documents.decoding import clean
from edge.apps.documents.kinds import ROW
from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

_LEFT_OUT = frozenset({
    "del", "moveFrom", "Fallback", "instrText", "delText", "pPr", "rPr", "tblPr", "sectPr", "object",
})  # fmt: skip
_PIECES = frozenset({"t", "tab", "ptab", "br", "cr", "noBreakHyphen", "txbxContent"})
_MOST_BASES = 20


def extract_docx(file: OpenedFile) -> DocumentBlocks:
    """Reads a DOCX file.

    Raises:
        InputError: the file is damaged.
        Skipped: the file is encrypted or has no text.
    """
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "word/document.xml"
        document = archive.xml(main)
        styles = archive.related(main, "styles")
        reader = _TextReader(_heading_levels(archive.xml(styles)) if styles in archive.names else {})
        reader.read(document)
        for kind in ("footnotes", "endnotes"):
            notes = archive.related(main, kind)
            if notes in archive.names:
                reader.read(archive.xml(notes))
        title = archive.title()
    if not reader.blocks:
        raise Skipped(Reason.NO_TEXT, "the document has no text")
    return DocumentBlocks(meaningful(title) or first_heading(reader.blocks), reader.blocks)


class _TextReader:
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
            kind = "heading" if level else "item" if paragraph.find("{*}pPr/{*}numPr") is not None else "paragraph"
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
            self.blocks.append(Block("\n".join(rows), first, self._line, kind="table", path=self._outline.path))

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


_TITLES = frozenset({"title", "ctrTitle"})
_FURNITURE = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})


def extract_pptx(file: OpenedFile) -> DocumentBlocks:
    """Reads a PPTX file.

    Raises:
        InputError: the file is damaged.
        Skipped: the file is encrypted, or its slides have no text.
    """
    blocks: list[Block] = []
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "ppt/presentation.xml"
        relations = archive.relations(main)
        for page, entry in enumerate(archive.xml(main).iter("{*}sldId"), 1):
            # A slide's entry has two attributes called id; the one with a namespace names the relation.
            identity = next((value for key, value in entry.attrib.items() if key.endswith("}id")), "")
            kind, name = relations.get(identity, ("", ""))
            if kind != "slide":
                raise InputError(f"a damaged document: slide {page} is missing")
            blocks += _slide(archive, name, page)
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "no slide shows any text")
    title = next((block.path[0] for block in blocks if block.path), "")
    return DocumentBlocks(title, blocks)


def _slide(archive: Archive, name: str, page: int) -> Iterator[Block]:
    """The blocks of a slide: its title, its other text, its notes."""
    slide = archive.xml(name)
    shapes = list(_shapes(slide))
    titles = [shape for shape in shapes if _placeholder(shape) in _TITLES]
    line = 1
    path: tuple[str, ...] = ()
    for shape in titles[:1]:
        text = " ".join(" ".join(text for _, text in _shape_lines(shape)).split())
        if text:
            path = (text,)
            yield Block(text, line, line, page, "heading", path)
            line += 1
    notes = archive.related(name, "notesSlide")
    parts = [(shape, path) for shape in shapes if shape not in titles[:1]]
    if notes in archive.names:
        parts += [(shape, (*path, "Notes")) for shape in _shapes(archive.xml(notes))]
    for shape, under in parts:
        if _placeholder(shape) in _FURNITURE:
            continue
        kind = "item" if _placeholder(shape) == "body" and under[-1:] != ("Notes",) else "paragraph"
        for name, text in _shape_lines(shape):
            lines = (line,) * (text.count("\n") + 1)
            parts = ((ROW, len(text)),) if name == "tr" else None
            yield Block(text, line, line, page, kind, under, lines, parts)
            line += 1


def _shapes(slide: Any) -> Iterator[Any]:
    """Shapes and graphic frames with text, in the order of the file, which is the drawing order."""
    return outermost(slide, {"sp", "graphicFrame"}, {"Fallback"})


def _placeholder(shape: Any) -> str:
    """The role of a shape on its slide: `title`, `body`, `sldNum`, ...; empty for a shape without a role."""
    element = next(shape.iter("{*}ph"), None)
    return "" if element is None else (attribute(element, "type") or "body")


def _shape_lines(shape: Any) -> Iterator[tuple[str, str]]:
    """The paragraphs (`p`) and table rows (`tr`) of a shape, with their texts."""
    for found in outermost(shape, {"tr", "p"}):
        if local(found) == "tr":
            cells = (
                " ".join(" ".join(_paragraph_text(p) for p in cell.iter("{*}p")).split())
                for cell in found.iter("{*}tc")
            )
            row = " | ".join(cells)
            if row.strip(" |"):
                yield "tr", row.rstrip()
        elif text := _paragraph_text(found):
            yield "p", text


def _paragraph_text(paragraph: Any) -> str:
    found = paragraph.iter("{*}t", "{*}br", "{*}tab")
    text = "".join({"br": "\n", "tab": "\t"}.get(local(element)) or element.text or "" for element in found)
    lines = (line.strip() for line in clean(text).split("\n"))
    return "\n".join(line for line in lines if line)
