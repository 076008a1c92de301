"""DOCX and PPTX, ODT, ODS and ODP, RTF, and the binary DOC, XLS and PPT. Lines are paragraphs and table rows; a slide
is a page under its title. Behind a DOCX file's main text come comments, headers, footers, drawings, and documents that
it includes. The parts are read directly: no pictures are unpacked, content controls and text boxes are read, and text
deleted under change tracking is not."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import Any

from edge.apps.documents.archive import (
    Archive,
    Numbering,
    OpenNumbering,
    WordNumbering,
    attribute,
    description,
    drawings,
    dublin_core_title,
    local,
    number_of,
    outermost,
    paragraph_text,
    shown_lines,
)
from edge.apps.documents.base import (
    MAX_TEXT_CHARS,
    Block,
    DocumentBlocks,
    Outline,
    Reason,
    Skipped,
    first_heading,
    meaningful,
)  # fmt: skip
from edge.apps.documents.decoding import clean, normalised
from edge.apps.documents.file_types import choose, load
from edge.apps.documents.kinds import ITEM_MARK, ROW, unmarked
from edge.apps.documents.markdown import markdown_blocks
from edge.apps.documents.opened import Attached, OpenedFile, too_much_text
from edge.apps.documents.tables import LONGEST_MERGED, MOST_COLUMNS, Row, row_blocks
from edge.errors import InputError

_LEFT_OUT = frozenset({
    "del", "moveFrom", "Fallback", "instrText", "delText", "pPr", "rPr", "tblPr", "sectPr", "object", "rt",
})  # fmt: skip
_PIECES = frozenset({"t", "tab", "ptab", "br", "cr", "noBreakHyphen", "sym", "txbxContent", "docPr"})
_GREEK = dict(zip(
    "abcdefghiklmnopqrstuwxyzABCDEFGHIKLMNOPQRSTUWXYZ", "αβχδεφγηικλμνοπθρστυωξψζΑΒΧΔΕΦΓΗΙΚΛΜΝΟΠΘΡΣΤΥΩΞΨΖ", strict=True
))  # fmt: skip
_SYMBOL = {f"{ord(letter):02x}": greek for letter, greek in _GREEK.items()}

_NOTES = ("footnotes", "endnotes")
_BEHIND = {"comments": "Comments", "header": "Header", "footer": "Footer"}

_SPACES = re.compile(" {2,}")


def extract_docx(file: OpenedFile) -> DocumentBlocks:
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "word/document.xml"
        document = archive.xml(main)
        related: dict[str, list[str]] = {}
        for kind, name in archive.relations(main).values():
            if name in archive.names:
                related.setdefault(kind, []).append(name)
        styles, numbering = (
            archive.xml(related[kind][0]) if kind in related else None for kind in ("styles", "numbering")
        )
        reader = _WordReader(styles, numbering)
        reader.read(document)
        for name in (name for kind in _NOTES for name in related.get(kind, ())):
            reader.read(archive.xml(name))
        warning = reader.read_behind(archive, main, related)
        title = archive.title()
    return DocumentBlocks(meaningful(title) or first_heading(reader.blocks), reader.blocks, warning=warning)


class _TextReader(ABC):
    paragraphs: Set[str]
    tables: Set[str]
    left_out: Set[str]

    def __init__(self, outline: Outline, numbering: Numbering, page: int | None = None) -> None:
        self.blocks: list[Block] = []
        self.outline = outline
        self._numbering = numbering
        self._page = page
        self._line = 0

    def read(self, element: Any) -> list[Block]:
        """Iterative, so that deep nesting needs no stack."""
        waiting = [element]
        while waiting:
            found = waiting.pop()
            name = local(found)
            inner: list[Any] = []
            if name in self.paragraphs:
                label, text = self._numbering.label(found), self.text(found, inner)
                self.add_paragraph(_labelled(label, text), self.level(found), in_list=label is not None)
            elif name in self.tables:
                if rows := list(self.rows(found, inner)):
                    first = self._line + 1
                    self._line += len(rows)
                    path = self.outline.path
                    self.blocks.append(Block("\n".join(rows), first, self._line, self._page, "table", path))
            elif name not in self.left_out:
                inner = found
            waiting += reversed(inner)
        return self.blocks

    @abstractmethod
    def text(self, paragraph: Any, inner: list[Any]) -> str:
        """A paragraph's text without its number; its text boxes and notes are appended to `inner`."""

    @abstractmethod
    def level(self, paragraph: Any) -> int:
        """The level of a heading; 0 for other paragraphs."""

    @abstractmethod
    def rows(self, table: Any, inner: list[Any]) -> Iterator[str]:
        """The rows of a table that are not empty."""

    def add_paragraph(self, text: str, level: int, *, in_list: bool = False) -> None:
        if text:
            self._line += 1
            path = self.outline.enter(level, " ".join(text.split())) if level else self.outline.path
            kind = "heading" if level else "item" if in_list else "paragraph"
            self.blocks.append(Block.of([(text, self._line)], kind, path, self._page))


def _labelled(label: str | None, text: str) -> str:
    return f"{label} {text}" if label and text else text


class _WordReader(_TextReader):
    """Reads a DOCX file."""

    paragraphs, tables, left_out = frozenset({"p"}), frozenset({"tbl"}), _LEFT_OUT
    _numbering: WordNumbering

    def __init__(self, styles: Any, numbering: Any) -> None:
        super().__init__(Outline(), WordNumbering(numbering, styles))
        self._levels = {} if styles is None else _heading_levels(styles)

    def read_behind(self, archive: Archive, main: str, related: Mapping[str, Sequence[str]]) -> str:
        """Returns a sentence about what cannot be read."""
        left: list[str] = []
        shown: set[str] = set()
        for kind, heading in _BEHIND.items():
            for name in related.get(kind, ()):
                self.outline.enter(1, heading)
                first = len(self.blocks)
                try:
                    self.read(archive.xml(name))
                except InputError:
                    left.append(name)
                text = "\n".join(block.text for block in self.blocks[first:])
                if text in shown or not any(map(str.isalpha, text)):  # the same on each page, or only its number
                    del self.blocks[first:]
                shown.add(text)
        self.outline.leave(0)
        try:
            for text in drawings(archive, archive.relations(main).values()):
                self.add_paragraph(text, 0)
        except InputError:
            left.append("a drawing")
        for name in related.get("aFChunk", ()):
            file = Attached(name.rpartition("/")[2], archive.read(name))
            try:
                blocks = load(choose(file.name, file.head).extractor)(file).blocks
            except InputError:
                left.append(name)
                continue
            for block in blocks:
                if block.kind == "heading":
                    self.add_paragraph(block.path[-1], len(block.path))
                else:
                    self.add_paragraph(block.text, 0, in_list=block.kind == "item")
        return f"parts that cannot be read: {', '.join(left)}" if left else ""

    def text(self, paragraph: Any, inner: list[Any]) -> str:
        return _text(paragraph, inner)

    def rows(self, table: Any, inner: list[Any]) -> Iterator[str]:
        above: dict[Any, dict[int, str]] = {}
        for row in _rows(table):
            cells = [cell for cell in row.iter("{*}tc") if next(cell.iterancestors("{*}tr")) is row]
            values = above.setdefault(next(row.iterancestors("{*}tbl")), {})
            texts = [" ".join(" ".join(self._own_paragraphs(cell, inner)).split()) for cell in cells]
            if not any(texts):
                continue
            column = 0
            for at, cell in enumerate(cells):
                merged, span = cell.find("{*}tcPr/{*}vMerge"), cell.find("{*}tcPr/{*}gridSpan")
                if merged is not None and attribute(merged, "val") != "restart":
                    texts[at] = texts[at] or values.get(column, "")
                values[column] = texts[at] if len(texts[at]) <= LONGEST_MERGED else ""
                column += _count(span, "val")
            yield " | ".join(texts).rstrip()

    def _own_paragraphs(self, cell: Any, boxes: list[Any]) -> Iterator[str]:
        for paragraph in outermost(cell, {"p"}, _LEFT_OUT | {"tbl"}):
            yield _labelled(self._numbering.label(paragraph), self.text(paragraph, boxes))

    def level(self, paragraph: Any) -> int:
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return 0
        level = _outline_level(properties)
        return self._levels.get(self._numbering.style(properties, self._levels), 0) if level is None else level


def _rows(table: Any) -> Iterator[Any]:
    """Without tables in text boxes."""
    waiting = [table]
    while waiting:
        found = waiting.pop()
        name = local(found)
        if name == "tr":
            yield found
        if name != "txbxContent" and name not in _LEFT_OUT:
            waiting += reversed(found)


def _text(paragraph: Any, boxes: list[Any]) -> str:
    parts: list[str] = []
    for found in outermost(paragraph, _PIECES, _LEFT_OUT):
        name = local(found)
        if name == "t":
            # Parts of a formula, such as numerator and denominator, are words of their own.
            parts.append(f" {found.text or ''} " if "/math" in found.tag else found.text or "")
        elif name == "sym":
            code = (attribute(found, "char") or "")[-2:].lower()
            parts.append(_SYMBOL.get(code, "") if attribute(found, "font") == "Symbol" else "")
        elif name == "docPr":
            parts.append(f" {found.get('descr', '')} ")
        elif name in ("tab", "ptab"):
            parts.append("\t")
        elif name in ("br", "cr"):
            parts.append("\n")
        elif name == "noBreakHyphen":
            parts.append("-")
        else:
            boxes.append(found)
    return shown_lines(_SPACES.sub(" ", "".join(parts)))


def _heading_levels(styles: Any) -> dict[str, int]:
    levels = {}
    for style in styles.iter("{*}style"):
        name, properties = style.find("{*}name"), style.find("{*}pPr")
        level = _named_level((attribute(name, "val") or "").lower() if name is not None else "")
        if level is None and properties is not None:
            level = _outline_level(properties)
        if level is not None:
            levels[attribute(style, "styleId") or ""] = level
    return levels


def _named_level(name: str) -> int | None:
    """Names of built-in styles are English in every language of Word."""
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
    blocks: list[Block] = []
    damaged: list[int] = []
    missing: list[int] = []
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "ppt/presentation.xml"
        relations = archive.relations(main)
        for page, entry in enumerate(archive.xml(main).iter("{*}sldId"), 1):
            # A slide's entry has two attributes called id; the one with a namespace names the relation.
            identity = next((value for key, value in entry.attrib.items() if key.endswith("}id")), "")
            kind, name = relations.get(identity, ("", ""))
            if kind == "slide" and name in archive.names:
                blocks += _slide(archive, name, page, damaged)
            else:
                missing.append(page)
    if not blocks and missing:
        raise InputError(f"a damaged document: slide {missing[0]} is missing")
    title = next((block.path[0] for block in blocks if block.path), "")
    what = "slides that are missing" if missing else "slides with a drawing that cannot be read" if damaged else ""
    warning = f"{what}: {', '.join(map(str, missing or damaged))}" if what else ""
    return DocumentBlocks(title, blocks, warning=warning)


def _slide(archive: Archive, name: str, page: int, damaged: list[int]) -> Iterator[Block]:
    """Its title, its other text, its drawings, its notes. Its page is appended to `damaged` if a drawing cannot be
    read."""
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
    lines = [(shape, path, *line) for shape in shapes if shape not in titles[:1] for line in _shape_lines(shape)]
    try:
        lines += [(None, path, "p", text) for text in drawings(archive, archive.relations(name).values())]
    except InputError:
        damaged.append(page)
    if notes in archive.names:
        under = (*path, "Notes")
        lines += [(shape, under, *line) for shape in _shapes(archive.xml(notes)) for line in _shape_lines(shape)]
    for shape, under, element, text in lines:
        role = "" if shape is None else _placeholder(shape)
        if role in _FURNITURE:
            continue
        kind = "item" if role == "body" and under[-1:] != ("Notes",) else "paragraph"
        yield Block.of([(text, line)], kind, under, page, ((ROW, len(text)),) if element == "tr" else None)
        line += 1


def _shapes(slide: Any) -> Iterator[Any]:
    return outermost(slide, {"sp", "graphicFrame", "pic", "cxnSp"}, {"Fallback"})


def _placeholder(shape: Any) -> str:
    element = next(shape.iter("{*}ph"), None)
    return "" if element is None else (attribute(element, "type") or "body")


def _shape_lines(shape: Any) -> Iterator[tuple[str, str]]:
    if described := description(shape):
        yield "p", described
    above: dict[int, str] = {}
    for found in outermost(shape, {"tr", "p"}):
        if local(found) == "tr":
            cells = found.findall("{*}tc")
            texts = [" ".join(" ".join(paragraph_text(p) for p in cell.iter("{*}p")).split()) for cell in cells]
            if any(texts):
                for column, cell in enumerate(cells):
                    if cell.get("vMerge") in ("1", "true"):
                        texts[column] = above.get(column, "")
                above = dict(enumerate(texts))
            row = " | ".join(texts)
            if row.strip(" |"):
                yield "tr", row.rstrip()
        elif text := paragraph_text(found):
            yield "p", text


_ODF_LEFT_OUT = frozenset({"tracked-changes", "annotation-end", "forms", "sequence-decls",
                           "table-of-content", "ruby-text"})  # fmt: skip
_OBJECT = re.compile(r"(?:[^/]+/)*Object[^/]*/content\.xml")

_MOST_ROWS = 10**9


def extract_odf(file: OpenedFile) -> DocumentBlocks:
    with Archive(file.stream) as archive:
        if "META-INF/manifest.xml" in archive.names:
            manifest = archive.xml("META-INF/manifest.xml")
            if next(manifest.iter("{*}encryption-data"), None) is not None:
                raise Skipped(Reason.ENCRYPTED, "the document is encrypted")
        content = archive.xml("content.xml")
        title = dublin_core_title(archive.xml("meta.xml")) if "meta.xml" in archive.names else ""
        objects = [archive.xml(name) for name in sorted(archive.names) if _OBJECT.fullmatch(name)]
        styles = [archive.xml(name) for name in {"styles.xml"} & archive.names]
    return _odf_blocks(content, styles, objects, title)


def extract_flat_odf(root: Any) -> DocumentBlocks:
    return _odf_blocks(root, [root], [], dublin_core_title(root))


def _odf_blocks(content: Any, styles: Sequence[Any], objects: Sequence[Any], title: str) -> DocumentBlocks:
    numbering = OpenNumbering(content, *styles)
    body = next(content.iter("{*}body"), None)
    kind = "" if body is None or not len(body) else local(body[0])
    if kind == "spreadsheet":
        blocks = list(_sheets(body))
    elif kind == "presentation":
        blocks = list(_slides(body, numbering))
    else:
        blocks = _OpenReader(Outline(), numbering).read(content if body is None else body)
    behind = _OpenReader(Outline(), numbering)
    for each in [*objects, *(each for root in styles for each in root.iter("{*}header", "{*}footer"))]:
        behind.read(each)
    blocks += [block for block in behind.blocks if any(map(str.isalpha, block.text))]
    if sum(len(block.text) for block in blocks) > MAX_TEXT_CHARS:
        raise too_much_text()
    return DocumentBlocks(title or first_heading(blocks), blocks)


class _OpenReader(_TextReader):
    paragraphs, tables, left_out = frozenset({"p", "h"}), frozenset({"table"}), _ODF_LEFT_OUT

    def text(self, paragraph: Any, inner: list[Any]) -> str:
        return _odf_text(paragraph, inner)

    def level(self, paragraph: Any) -> int:
        given = (attribute(paragraph, "outline-level") or "1") if local(paragraph) == "h" else "0"
        return int(given) if given.isdecimal() and len(given) < 3 else 1

    def rows(self, table: Any, inner: list[Any]) -> Iterator[str]:
        return (" | ".join(values).rstrip(" |") for _, _, values in _odf_rows(table))


def _sheets(body: Any) -> Iterator[Block]:
    sheets = [table for table in body.iter("{*}table") if local(table.getparent()) == "spreadsheet"]
    for page, sheet in enumerate(sheets, 1):
        name = " ".join(clean(attribute(sheet, "name") or "").split())
        yield from row_blocks(_odf_rows(sheet), name, page if len(sheets) > 1 else None)


def _slides(body: Any, numbering: OpenNumbering) -> Iterator[Block]:
    for number, slide in enumerate(body.iter("{*}page"), 1):
        outline = Outline()
        text = _OpenReader(outline, numbering, number)
        frames = [frame for frame in slide if local(frame) not in ("notes", *_ODF_LEFT_OUT)]
        titles = [frame for frame in frames if attribute(frame, "class") == "title"]
        for frame in titles[:1]:
            title = _OpenReader(Outline(), numbering, number).read(frame)
            text.add_paragraph(" ".join(" ".join(block.text for block in title).split()), 1)
        for frame in frames:
            if frame not in titles[:1] and attribute(frame, "class") not in ("page-number", "date-time", "footer"):
                text.read(frame)
        notes = [note for note in slide if local(note) == "notes"]
        if notes:
            outline.enter(2, "Notes")
            for note in notes:
                text.read(note)
        yield from text.blocks


def _odf_rows(table: Any) -> Iterator[Row]:
    """A row that stands for many equal rows is read once."""
    number = 1
    merged: dict[int, tuple[int, str]] = {}
    for row in outermost(table, {"table-row"}, {"shapes", "forms"}):
        repeated = _count(row, "number-rows-repeated")
        values: list[str] = []
        for cell in row:
            if local(cell) not in ("table-cell", "covered-table-cell"):
                continue
            inner: list[Any] = []
            parts = [_odf_text(paragraph, inner) for paragraph in cell.iter("{*}p", "{*}h")]
            text = " ".join(" ".join(parts).split()) if local(cell) == "table-cell" else ""
            if (rows := _count(cell, "number-rows-spanned")) > 1 and len(text) <= LONGEST_MERGED:
                merged[len(values)] = (number + rows - 1, text)
            count = _count(cell, "number-columns-repeated")
            values += [text] * min(count, MOST_COLUMNS if text else MOST_COLUMNS + 1)
            if not text and len(values) > MOST_COLUMNS:
                break  # empty cells after the sheet's last value
        while values and not values[-1]:
            values.pop()
        if values:
            for column, (last, text) in merged.items():
                if column < len(values) and number <= last:
                    values[column] = values[column] or text
            yield number, number, values
        number = min(number + repeated, _MOST_ROWS)


def _count(element: Any, name: str) -> int:
    return max(1, number_of(element, name, 1))


def _odf_text(paragraph: Any, inner: list[Any]) -> str:
    parts = [paragraph.text or ""]
    waiting = [(child, False) for child in reversed(paragraph)]
    while waiting:
        found, after = waiting.pop()
        if after:
            parts.append(found.tail or "")
            continue
        waiting.append((found, True))
        name = local(found)
        if name in ("s", "tab", "line-break"):  # the number of spaces does not matter
            parts.append({"s": " ", "tab": "\t", "line-break": "\n"}[name])
        elif name in ("text-box", "note-body", "annotation"):
            inner.append(found)
        elif name not in _ODF_LEFT_OUT and name not in ("note-citation", "p", "h"):
            parts.append(found.text or "")
            waiting += [(child, False) for child in reversed(found)]
    lines = (" ".join(line.split()) for line in clean("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line)


_PICTURE = re.compile(rb"(?:[0-9a-fA-F]{32,}\s*){4,}")
_RAW = re.compile(rb"[\x80-\xff]")
_BINARY = re.compile(rb"(?<!\\)\\bin(?:(\d{1,9})|(?![A-Za-z])) ?")


def extract_rtf(file: OpenedFile) -> DocumentBlocks:
    from striprtf.striprtf import rtf_to_text

    data = _PICTURE.sub(b"", _without_binary(file.read()))
    # The library looks for links line by line, and decodes only letters that are written as hexadecimal numbers.
    data = _RAW.sub(lambda match: b"\\'%02x" % match[0][0], data.replace(b"{\\field", b"\n{\\field"))
    text = rtf_to_text(data.decode("ascii"), errors="replace")  # type: ignore[no-untyped-call]
    if len(text) > MAX_TEXT_CHARS:
        raise too_much_text()
    return DocumentBlocks("", _rtf_blocks(normalised(text.replace("\xad", "")).split("\n")))


def _without_binary(data: bytes) -> bytes:
    pieces, at = [], 0
    while (found := _BINARY.search(data, at)) is not None:
        pieces.append(data[at : found.start()])
        at = found.end() + int(found[1] or 0)
    return b"".join([*pieces, data[at:]])


def _rtf_blocks(lines: Sequence[str]) -> Iterator[Block]:
    """A block for each paragraph, and one for the rows of a table, whose cells end with a bar."""
    numbered = ((number, " ".join(line.split())) for number, line in enumerate(lines, 1))
    for is_table, group in groupby(
        ((number, line) for number, line in numbered if line.strip("| ")), lambda each: each[1].endswith("|")
    ):
        if is_table:
            rows = ((" | ".join(cell.strip() for cell in line[:-1].split("|")), number) for number, line in group)
            yield Block.of(rows, "table")
        else:
            for number, line in group:
                yield Block(line, number, number, None, "paragraph")


MISSING = (
    "old binary Office files are read with the extra `office`: pip install 'edge-rag[office]'; or save it as DOCX, "
    "XLSX or PPTX"
)

_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[\s|:-]+")


def extract_old(file: OpenedFile) -> DocumentBlocks:
    """Reads a binary file with the extra `office`, whose library writes Markdown: as such, but without its marks. The
    rows of a sheet are those of a table. Lines are those of the Markdown."""
    try:
        from office_oxide import Document, OfficeOxideError
    except ImportError:
        raise Skipped(Reason.UNSUPPORTED, MISSING) from None
    try:
        kind: Any = file.suffix[1:]
        text = clean(Document.from_bytes(file.read(), kind).to_markdown())
    except OfficeOxideError as error:
        if "thread spawn failed" in str(error):  # the library's thread has a large stack
            raise MemoryError from error
        raise InputError(f"a damaged Office file, or one with a password ({error})") from error
    if len(text) > MAX_TEXT_CHARS:
        raise too_much_text()
    blocks = list(_old_blocks(text.split("\n"), is_sheet=file.suffix == ".xls"))
    return DocumentBlocks("" if file.suffix == ".xls" else first_heading(blocks), blocks)


def _old_blocks(lines: list[str], *, is_sheet: bool) -> Iterator[Block]:
    for block in markdown_blocks(lines, Outline()):
        if block.kind == "table":
            rows = list(_markdown_rows(block))
            if is_sheet:
                yield from row_blocks(rows, block.path[-1] if block.path else "")
            elif rows:
                yield Block.of(((" | ".join(values).rstrip(), at) for at, _, values in rows), "table", block.path)
        elif block.kind == "heading" and not is_sheet:
            yield Block.of([(block.path[-1], block.line_start)], "heading", block.path)
        elif block.kind != "heading":
            for number, line in enumerate(block.text.split("\n"), block.line_start):
                if line.strip():
                    kind = "item" if ITEM_MARK.match(line) else "paragraph"
                    yield Block.of([(unmarked(line), number)], kind, block.path)


def _markdown_rows(table: Block) -> Iterator[Row]:
    for number, line in enumerate(table.text.split("\n"), table.line_start):
        if not _RULE.fullmatch(line):
            cells = [unmarked(cell.replace("\\|", "|")) for cell in _BAR.split(line.strip())]
            yield number, number, cells[1:-1]
