"""RTF: the paragraphs of its text. Lines are paragraphs and rows of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Reason, Skipped
from edge.apps.documents.decoding import normalised
from edge.apps.documents.opened import OpenedFile, too_much_text

_PICTURE = re.compile(rb"(?:[0-9a-fA-F]{32,}\s*){4,}")
_RAW = re.compile(rb"[\x80-\xff]")


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads an RTF file."""
    from striprtf.striprtf import rtf_to_text

    data = _PICTURE.sub(b"", file.read())
    # The library looks for links line by line, and decodes only letters that are written as hexadecimal numbers.
    data = _RAW.sub(lambda match: b"\\'%02x" % match[0][0], data.replace(b"{\\field", b"\n{\\field"))
    text = rtf_to_text(data.decode("ascii"), errors="replace")
    if len(text) > MAX_TEXT_CHARS:
        raise too_much_text()
    blocks = list(_blocks(normalised(text.replace("\xad", "")).split("\n")))
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "the document has no text")
    return DocumentBlocks("", blocks)


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    """A block for each paragraph, and one for the rows of a table, whose cells end with a bar."""
    numbered = ((number, " ".join(line.split())) for number, line in enumerate(lines, 1))
    for is_table, group in groupby(
        ((number, line) for number, line in numbered if line.strip("| ")), lambda each: each[1].endswith("|")
    ):
        found = list(group)
        if is_table:
            rows = [" | ".join(cell.strip() for cell in line[:-1].split("|")) for _, line in found]
            numbers = tuple(number for number, _ in found)
            yield Block("\n".join(rows), numbers[0], numbers[-1], None, "table", (), numbers)
        else:
            for number, line in found:
                yield Block(line, number, number, None, "paragraph")
