"""ODT, ODS and ODP: texts, sheets and slides in the OpenDocument format.

Lines are paragraphs and table rows of a text, rows of a sheet, paragraphs of a slide. Comments, and text that was
deleted under change tracking, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edge.apps.documents.archive import Archive, attribute, dublin_core_title, local
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Outline, Reason, Skipped, first_heading
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile, too_much_text
from edge.apps.documents.tables import MOST_COLUMNS, row_blocks

_LEFT_OUT = frozenset({"tracked-changes", "annotation", "annotation-end", "forms", "sequence-decls", "table-of-content",
                       "ruby-text"})  # fmt: skip
_MOST_ROWS = 10**9


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads an OpenDocument text, spreadsheet or presentation.

    Raises:
        InputError: the file is damaged.
        Skipped: the file is encrypted, or has no text or too much.
    """
    with Archive(file.stream) as archive:
        if "META-INF/manifest.xml" in archive.names:
            manifest = archive.xml("META-INF/manifest.xml")
            if next(manifest.iter("{*}encryption-data"), None) is not None:
                raise Skipped(Reason.ENCRYPTED, "the document is encrypted")
        content = archive.xml("content.xml")
        title = dublin_core_title(archive.xml("meta.xml")) if "meta.xml" in archive.names else ""
    body = next(content.iter("{*}body"), None)
    kind = "" if body is None or not len(body) else local(body[0])
    if kind == "spreadsheet":
        blocks = list(_sheets(body))
    elif kind == "presentation":
        blocks = list(_slides(body))
    else:
        blocks = _Text(Outline(), None).read(content if body is None else body)
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "the document has no text")
    if sum(len(block.text) for block in blocks) > MAX_TEXT_CHARS:
        raise too_much_text()
    return DocumentBlocks(title or first_heading(blocks), blocks)


class _Text:
    """Converts paragraphs and tables to blocks, in document order."""

    def __init__(self, outline: Outline, page: int | None) -> None:
        self.blocks: list[Block] = []
        self._outline = outline
        self._page = page
        self._line = 0

    def read(self, element: Any) -> list[Block]:
        """The blocks below an element. Iterative, so that deep nesting needs no stack."""
        waiting = [element]
        while waiting:
            found = waiting.pop()
            name = local(found)
            if name in ("p", "h"):
                inner: list[Any] = []
                self._paragraph(found, inner)
                waiting += reversed(inner)
            elif name == "table":
                self._table(found)
            elif name not in _LEFT_OUT:
                waiting += reversed(found)
        return self.blocks

    def _paragraph(self, paragraph: Any, inner: list[Any]) -> None:
        text = _text(paragraph, inner)
        if not text:
            return
        self._line += 1
        level = 0
        if local(paragraph) == "h":
            given = attribute(paragraph, "outline-level") or "1"
            level = int(given) if given.isdecimal() and len(given) < 3 else 1
        path = self._outline.enter(level, " ".join(text.split())) if level else self._outline.path
        lines = (self._line,) * (text.count("\n") + 1)
        in_list = next(paragraph.iterancestors("{*}list-item"), None) is not None
        kind = "heading" if level else "item" if in_list else "paragraph"
        self.blocks.append(Block(text, self._line, self._line, self._page, kind, path, lines))

    def _table(self, table: Any) -> None:
        rows = [" | ".join(values).rstrip(" |") for _, values in _rows(table)]
        if rows:
            first = self._line + 1
            self._line += len(rows)
            self.blocks.append(Block("\n".join(rows), first, self._line, self._page, "table", self._outline.path))


def _sheets(body: Any) -> Iterator[Block]:
    sheets = [table for table in body.iter("{*}table") if local(table.getparent()) == "spreadsheet"]
    for page, sheet in enumerate(sheets, 1):
        name = " ".join(clean(attribute(sheet, "name") or "").split())
        yield from row_blocks(_rows(sheet), name, page if len(sheets) > 1 else None)


def _slides(body: Any) -> Iterator[Block]:
    for number, slide in enumerate((page for page in body.iter("{*}page")), 1):
        outline = Outline()
        text = _Text(outline, number)
        frames = [frame for frame in slide if local(frame) not in ("notes", *_LEFT_OUT)]
        titles = [frame for frame in frames if attribute(frame, "class") == "title"]
        for frame in titles[:1]:
            shown = " ".join(" ".join(block.text for block in _Text(Outline(), number).read(frame)).split())
            if shown:
                text.blocks.append(Block(shown, 1, 1, number, "heading", outline.enter(1, shown)))
                text._line = 1
        for frame in frames:
            if frame not in titles[:1] and attribute(frame, "class") not in ("page-number", "date-time", "footer"):
                text.read(frame)
        notes = [note for note in slide if local(note) == "notes"]
        if notes:
            outline.enter(2, "Notes")
            for note in notes:
                text.read(note)
        yield from text.blocks


def _rows(table: Any) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows that are not empty, with their numbers and values. A row that stands for many equal rows is read once."""
    number = 1
    for row in _own(table, "table-row"):
        repeated = _count(row, "number-rows-repeated")
        values: list[str] = []
        for cell in row:
            if local(cell) not in ("table-cell", "covered-table-cell"):
                continue
            inner: list[Any] = []
            parts = [_text(paragraph, inner) for paragraph in cell.iter("{*}p", "{*}h")]
            text = " ".join(" ".join(parts).split()) if local(cell) == "table-cell" else ""
            values += [text] * min(_count(cell, "number-columns-repeated"), MOST_COLUMNS if text else MOST_COLUMNS + 1)
            if not text and len(values) > MOST_COLUMNS:
                break  # empty cells after the sheet's last value
        while values and not values[-1]:
            values.pop()
        if values:
            yield number, values
        number = min(number + repeated, _MOST_ROWS)


def _own(table: Any, name: str) -> Iterator[Any]:
    """Parts of a table by name, without parts of nested tables."""
    waiting = list(reversed(table))
    while waiting:
        found = waiting.pop()
        if local(found) == name:
            yield found
        elif local(found) in ("table-header-rows", "table-row-group", "table-rows"):
            waiting += reversed(found)


def _count(element: Any, name: str) -> int:
    """How many repetitions an element stands for, by its attribute."""
    value = attribute(element, name) or "1"
    return max(1, int(value)) if value.isdecimal() and len(value) < 10 else 1


def _text(paragraph: Any, inner: list[Any]) -> str:
    """A paragraph's text; its text boxes and notes are appended to `inner`."""
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
        elif name in ("text-box", "note-body"):
            inner.append(found)
        elif name not in _LEFT_OUT and name not in ("note-citation", "p", "h"):
            parts.append(found.text or "")
            waiting += [(child, False) for child in reversed(found)]
    lines = (" ".join(line.split()) for line in clean("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line)
