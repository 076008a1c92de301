"""Binary Office files (DOC, XLS, PPT) with the extra `office`: the library writes Markdown, which is read as such, but
without its marks. The rows of a sheet are those of a table. Lines are those of the Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Outline, Reason, Skipped, first_heading
from edge.apps.documents.decoding import clean
from edge.apps.documents.kinds import ITEM_MARK, unmarked
from edge.apps.documents.markdown import markdown_blocks
from edge.apps.documents.opened import OpenedFile, too_much_text
from edge.apps.documents.tables import Row, row_blocks
from edge.errors import InputError

MISSING = (
    "old binary Office files are read with the extra `office`: pip install 'edge-rag[office]'; or save it as DOCX, "
    "XLSX or PPTX"
)

_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[\s|:-]+")


def extract(file: OpenedFile) -> DocumentBlocks:
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
    blocks = list(_blocks(text.split("\n"), is_sheet=file.suffix == ".xls"))
    return DocumentBlocks("" if file.suffix == ".xls" else first_heading(blocks), blocks)


def _blocks(lines: list[str], *, is_sheet: bool) -> Iterator[Block]:
    for block in markdown_blocks(lines, Outline()):
        if block.kind == "table":
            rows = list(_rows(block))
            if is_sheet:
                yield from row_blocks(rows, block.path[-1] if block.path else "")
            elif rows:
                shown = "\n".join(" | ".join(values).rstrip() for _, _, values in rows)
                yield replace(block, text=shown, parts=None, lines=tuple(number for number, _, _ in rows))
        elif block.kind == "heading" and not is_sheet:
            yield replace(block, text=block.path[-1], parts=None, lines=(block.line_start,))
        elif block.kind != "heading":
            for number, line in enumerate(block.text.split("\n"), block.line_start):
                if line.strip():
                    kind = "item" if ITEM_MARK.match(line) else "paragraph"
                    yield Block.of([(unmarked(line), number)], kind, block.path)


def _rows(table: Block) -> Iterator[Row]:
    for number, line in enumerate(table.text.split("\n"), table.line_start):
        if not _RULE.fullmatch(line):
            cells = [unmarked(cell.replace("\\|", "|")) for cell in _BAR.split(line.strip())]
            yield number, number, cells[1:-1]
