"""Draws a page of a PDF, with the lines of a passage marked. It runs in the worker process."""

from __future__ import annotations

import base64
import ctypes
import zlib
from collections.abc import Collection, Iterator
from typing import Any

from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.page_picture import LONGER_SIDE, MOST_COMPRESSED
from edge.apps.documents.pdf import opened_pdf, page_lines
from edge.errors import InputError

_MOST_SCALE = 3.0
_MARK = (255, 232, 120)
_RIM = 0.12
"""Share of a line's height that the colour reaches beyond its letters, above and below."""

_LEVEL = 6
"""Compression level of zlib."""

_Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


def drawn(file: OpenedFile, page: int, lines: Collection[int]) -> dict[str, Any]:
    """Draws a page of a PDF and returns the worker's answer with the picture.

    Args:
        page: number of the page, from 1.
        lines: line numbers to mark, as in the index.

    Raises:
        InputError: the PDF is damaged, or has no such page.
        Skipped: it needs a password.
    """
    with opened_pdf(file) as (document, pypdfium2):
        if not 1 <= page <= len(document):
            raise InputError(f"there is no page {page}; the document has {len(document):,}")
        try:
            opened = document[page - 1]
            marked = _mark(opened, lines, pypdfium2.raw) if lines else False
            scale = min(LONGER_SIDE / max(*opened.get_size(), 1.0), _MOST_SCALE)
            bitmap = opened.render(scale=scale, rev_byteorder=True)
        except pypdfium2.PdfiumError as error:
            raise InputError(f"a damaged PDF: page {page} cannot be drawn ({error})") from error
        rows = b"".join(_compressed(bitmap))
        if len(rows) > MOST_COMPRESSED:
            raise InputError(f"page {page} makes too large a picture")
        return {
            "end": True, "width": bitmap.width, "height": bitmap.height, "pages": len(document), "marked": marked,
            "rows": base64.b64encode(rows).decode("ascii"),
        }  # fmt: skip


def _mark(page: Any, lines: Collection[int], raw: Any) -> bool:
    """Lays a colour over lines of a page, as a marker pen does; returns whether the page has such lines."""
    text = page.get_textpage()
    left, top, right, bottom = (ctypes.c_double() for _ in range(4))
    marks: list[_Box] = []
    for line in page_lines(text, raw):
        first = raw.FPDFText_GetCharIndexFromTextIndex(text.raw, line.start)
        last = raw.FPDFText_GetCharIndexFromTextIndex(text.raw, line.end - 1)
        if line.number not in lines or first < 0 or last < first:
            continue
        boxes: list[_Box] = []
        for index in range(raw.FPDFText_CountRects(text.raw, first, last - first + 1)):
            raw.FPDFText_GetRect(text.raw, index, left, top, right, bottom)
            boxes.append((left.value, bottom.value, right.value, top.value))
        marks += _joined(boxes)
    for x, y, far, high in marks:
        rim = _RIM * (high - y)
        rectangle = raw.FPDFPageObj_CreateNewRect(x, y - rim, far - x, high - y + 2 * rim)
        raw.FPDFPageObj_SetFillColor(rectangle, *_MARK, 255)
        raw.FPDFPageObj_SetBlendMode(rectangle, b"Multiply")
        raw.FPDFPath_SetDrawMode(rectangle, raw.FPDF_FILLMODE_WINDING, False)
        raw.FPDFPage_InsertObject(page.raw, rectangle)
    return bool(marks)


def _joined(boxes: list[_Box]) -> list[_Box]:
    """One box around the boxes of a line, each of which ends with its letters. Boxes that do not stand side by side, as
    those of rotated text, stay as they are."""
    if not boxes:
        return []
    _, low, _, high = max(boxes, key=lambda box: box[3] - box[1])
    if any(bottom > high or top < low for _, bottom, _, top in boxes):
        return boxes
    lefts, bottoms, rights, tops = zip(*boxes, strict=True)
    return [(min(lefts), min(bottoms), max(rights), max(tops))]


def _compressed(bitmap: Any) -> Iterator[bytes]:
    """The rows of a PNG file, each after its filter byte (none), compressed as one stream."""
    packer = zlib.compressobj(_LEVEL)
    pixels, step = memoryview(bitmap.buffer).cast("B"), bitmap.n_channels
    for row in range(bitmap.height):
        start = row * bitmap.stride
        line = pixels[start : start + bitmap.width * step]
        if step != 3:  # grey, or with an unused fourth byte
            channels = [line[channel::step] for channel in (range(3) if step == 4 else (0, 0, 0))]
            packed = bytearray(3 * bitmap.width)
            for place, channel in enumerate(channels):
                packed[place::3] = channel
            line = memoryview(packed)
        yield packer.compress(b"\0" + line)
    yield packer.flush()
