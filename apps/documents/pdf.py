"""PDF: paragraphs and headings, found by position and size of the letters. Lines are lines of a page's text.

Scripts are not run. If no page has text, the pages are rendered and read as pictures (see `pictures`).

A page can also be drawn with the lines of a passage marked (`drawn`). The worker sends the compressed rows of a PNG
file, and the parent makes the rest of the file (`PagePicture`). So a worker that a document has taken over controls
only the pixels of a picture.
"""

from __future__ import annotations

import base64
import ctypes
import math
import re
import statistics
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from edge.apps.documents.base import (
    MAX_TEXT_CHARS,
    Block,
    DocumentBlocks,
    Outline,
    Reason,
    Skipped,
    first_heading,
    meaningful,
)
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile, too_much_text
from edge.errors import InputError

_MOST_PAGES = 10_000
_HEADING_SIZE = 1.15
"""A heading's letters are at least this much larger than the body's."""

_HEADING_CHARS = 150
_PICTURE_SIDE = 1_760
_PICTURE_SCALE = 3.0
"""For scanned pages: the most pixels of the longer side, and the most pixels per point."""

_WIDE_GAP = 1.4
"""A gap between lines separates paragraphs if it is this much larger than the usual gap."""

_LEADER = re.compile(r"(?:\.[ \t]?){4,}|(?:[_\-][ \t]?){8,}")
_WRAPPED = re.compile("[\ufffe\u00ad\x02]")
"""Characters that the library puts where it joins a hyphenated word."""

_HYPHENATED = re.compile(r"[^\W\d_]{2,}-$")


@dataclass(slots=True)
class _PageLine:
    """A line of a page: text, number, height of its letters and baseline in points, and range in the page's text."""

    text: str
    number: int
    size: float
    base: float
    start: int
    end: int


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads a PDF file.

    Raises:
        InputError: the file is damaged, or has too many pages.
        Skipped: the file needs a password, or has no text.
    """
    with opened_pdf(file) as (document, pypdfium2):
        if len(document) > _MOST_PAGES:
            raise InputError(f"a PDF of {len(document):,} pages; {_MOST_PAGES:,} is the most that is read")
        pages = list(_pages(document, pypdfium2))
        title = " ".join(clean(document.get_metadata_value("Title")).split())
        scanned = _scanned(document, pages, file) if pages and not any(pages) and None not in pages else ([], "")
    if scanned[0]:
        return DocumentBlocks(meaningful(title), *scanned[:1], warning=scanned[1])
    damaged = [str(number) for number, lines in enumerate(pages, 1) if lines is None]
    if not any(pages):
        if damaged:
            raise InputError("a damaged PDF: no page of it can be read")
        raise Skipped(Reason.NO_TEXT, scanned[1] or "no page shows text")
    blocks = _document_blocks([lines or [] for lines in pages])
    if not meaningful(title):
        title = first_heading(blocks)
    warning = f"damaged, and left out: page {', '.join(damaged[:10])}" if damaged else ""
    return DocumentBlocks(title, blocks, warning=warning)


@contextmanager
def opened_pdf(file: OpenedFile) -> Iterator[tuple[Any, Any]]:
    """Opens a PDF with pypdfium2; yields the document and the module. Raises as `extract` does."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(file.stream)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD or "password" in str(error).lower():
            raise Skipped(Reason.ENCRYPTED, "the PDF needs a password") from error
        raise InputError(f"a damaged PDF ({error})") from error
    with document:
        yield document, pypdfium2


def _pages(document: Any, pypdfium2: Any) -> Iterator[list[_PageLine] | None]:
    """The lines of every page; None for a damaged page.

    Raises:
        Skipped: there is too much text.
    """
    chars = 0
    for index in range(len(document)):
        try:
            page = document[index]
            text_page = page.get_textpage()
        except pypdfium2.PdfiumError:
            yield None
            continue
        text = text_page.get_text_range()
        chars += len(text)
        if chars > MAX_TEXT_CHARS:
            raise too_much_text()
        yield _joined(_lines(text, text_page, pypdfium2.raw))
        text_page.close()
        page.close()


def _scanned(document: Any, pages: Sequence[object], file: OpenedFile) -> tuple[list[Block], str]:
    """The blocks of a PDF whose pages are pictures, and a sentence about skipped pages.

    Raises:
        Skipped: the extra `ocr` is not installed.
    """
    from edge.apps.documents.pictures import recognised, recognizer

    return recognised(((at + 1, partial(_picture, document, at)) for at in range(len(pages))), recognizer(), file)


def _picture(document: Any, at: int) -> Any:
    """A page as a picture, [height, width, 3] uint8."""
    page = document[at]
    try:
        width, height = page.get_size()
        scale = min(_PICTURE_SIDE / max(width, height, 1.0), _PICTURE_SCALE)
        bitmap = page.render(scale=scale, rev_byteorder=True)
        return bitmap.to_numpy()[:, :, :3].copy()
    finally:
        page.close()


def _lines(text: str, text_page: Any, raw: Any) -> Iterator[_PageLine]:
    """A page's lines that are not empty, numbered in order."""
    x, y, matrix = ctypes.c_double(), ctypes.c_double(), raw.FS_MATRIX()
    number = at = 0
    for line in text.split("\n"):
        begin, end = at + len(line) - len(line.lstrip()), at + len(line.rstrip())
        at += len(line) + 1
        shown = " ".join(_LEADER.sub(" … ", clean(_WRAPPED.sub("", line))).split())
        if not shown:
            continue
        number += 1
        size = base = 0.0
        index = raw.FPDFText_GetCharIndexFromTextIndex(text_page.raw, begin)
        if index >= 0 and raw.FPDFText_GetCharOrigin(text_page.raw, index, x, y):
            base = y.value
        if index >= 0 and raw.FPDFText_GetMatrix(text_page.raw, index, matrix):
            size = raw.FPDFText_GetFontSize(text_page.raw, index) * math.hypot(matrix.c, matrix.d)
        yield _PageLine(shown, number, round(size, 1), base, begin, end)


def _joined(lines: Iterable[_PageLine]) -> list[_PageLine]:
    """Joins words that were hyphenated at the end of a line. A joined word stays on the first of its two lines."""
    found: list[_PageLine] = []
    for line in lines:
        before = found[-1] if found else None
        if before is not None and _HYPHENATED.search(before.text) and line.text[0].islower():
            rest, _, line.text = line.text.partition(" ")
            before.text = before.text[:-1] + rest
        if line.text:
            found.append(line)
    return found


def _document_blocks(pages: Sequence[Sequence[_PageLine]]) -> list[Block]:
    """Paragraphs and headings of all pages, in order."""
    chars: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            chars[line.size] += len(line.text)
    body = chars.most_common(1)[0][0]
    larger = sorted({size for size in chars if size >= _HEADING_SIZE * body}, reverse=True)
    levels = {size: level for level, size in enumerate(larger, 1)} if body else {}
    outline = Outline()
    blocks: list[Block] = []
    for page, lines in enumerate(pages, 1):
        for paragraph in _paragraphs(lines, levels):
            numbers = tuple(line.number for line in paragraph)
            text = "\n".join(line.text for line in paragraph)
            kind, path = "prose", outline.path
            level = levels.get(paragraph[0].size)
            if level and len(text) <= _HEADING_CHARS and any(map(str.isalpha, text)) and " … " not in text:
                kind, path = "heading", outline.enter(level, " ".join(text.split()))
            blocks.append(Block(text, numbers[0], numbers[-1], page, kind, path, numbers))
    return blocks


def _paragraphs(lines: Sequence[_PageLine], levels: Mapping[float, int]) -> Iterator[list[_PageLine]]:
    """Runs of lines without a wide gap and without a change between body and heading sizes."""
    gaps = [before.base - line.base for before, line in pairwise(lines)]
    down = [gap for gap in gaps if gap > 0]
    usual = statistics.median_low(down) if down else 0.0
    start = 0
    for at, gap in enumerate(gaps, 1):
        before, line = lines[at - 1], lines[at]
        wide = gap > _WIDE_GAP * max(usual, before.size)
        moved_up = gap < 0 and before.text.endswith((".", "!", "?", ":"))
        if wide or moved_up or levels.get(before.size) != levels.get(line.size):
            yield list(lines[start:at])
            start = at
    if lines:
        yield list(lines[start:])


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
    for line in _lines(text.get_text_range(), text, raw):
        first = raw.FPDFText_GetCharIndexFromTextIndex(text.raw, line.start)
        last = raw.FPDFText_GetCharIndexFromTextIndex(text.raw, line.end - 1)
        if line.number not in lines or first < 0 or last < first:
            continue
        boxes: list[_Box] = []
        for index in range(raw.FPDFText_CountRects(text.raw, first, last - first + 1)):
            raw.FPDFText_GetRect(text.raw, index, left, top, right, bottom)
            boxes.append((left.value, bottom.value, right.value, top.value))
        marks += _box_around(boxes)
    for x, y, far, high in marks:
        rim = _RIM * (high - y)
        rectangle = raw.FPDFPageObj_CreateNewRect(x, y - rim, far - x, high - y + 2 * rim)
        raw.FPDFPageObj_SetFillColor(rectangle, *_MARK, 255)
        raw.FPDFPageObj_SetBlendMode(rectangle, b"Multiply")
        raw.FPDFPath_SetDrawMode(rectangle, raw.FPDF_FILLMODE_WINDING, False)
        raw.FPDFPage_InsertObject(page.raw, rectangle)
    return bool(marks)


def _box_around(boxes: list[_Box]) -> list[_Box]:
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
