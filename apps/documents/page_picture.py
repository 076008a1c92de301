"""A page of a PDF as a picture, with the lines of a passage marked.

The worker process draws the page (`drawn`). It sends the compressed rows of a PNG file. The parent makes the rest of
the file (`PagePicture`). So a worker that a document has taken over controls only the pixels of a picture.
"""

from __future__ import annotations

import base64
import ctypes
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

LONGER_SIDE = 1_400
"""Pixels of a picture's longer side: 120 per inch of A4."""

MOST_COMPRESSED = 4 * 10**6
"""The most bytes of the compressed rows. A page of text takes 0.1 MB, a photograph up to 3 MB."""

PICTURE_NBYTES = 4 * MOST_COMPRESSED
"""Memory for receiving a picture: the line of JSON, its text, and the file."""


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A page as a picture.

    Attributes:
        png: the PNG file.
        width, height: in pixels.
        pages: number of pages of the document.
        marked: whether any line was marked.
    """

    png: bytes
    width: int
    height: int
    pages: int
    marked: bool

    @staticmethod
    def of(answer: dict[str, Any]) -> PagePicture:
        """Makes the picture from a worker's answer.

        Raises:
            InputError: the answer is not a valid picture.
        """
        try:
            width, height, pages = (int(answer[name]) for name in ("width", "height", "pages"))
            rows = base64.b64decode(answer["rows"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the page could not be drawn") from error
        if not (0 < width <= LONGER_SIDE and 0 < height <= LONGER_SIDE and len(rows) <= MOST_COMPRESSED):
            raise InputError("the page could not be drawn")
        return PagePicture(_png(width, height, rows), width, height, pages, bool(answer.get("marked")))


def _png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG file of 8-bit RGB (https://www.w3.org/TR/png-3/)."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [_part(b"IHDR", header), _part(b"IDAT", rows), _part(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


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
    from edge.apps.documents.pdf import opened_pdf

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
    from edge.apps.documents.pdf import page_lines

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
