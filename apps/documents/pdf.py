"""PDF: paragraphs and headings, found by position and size of the letters. Lines are lines of a page's text, with the
values of a form beside them and notes behind. Pages without text that show pictures are read as pictures. A page can
also be drawn with lines marked: the worker sends compressed rows of pixels, and the parent makes the rest of a PNG
file, so that a worker that a document has taken over controls only pixels."""

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
from functools import cache, partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

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
from edge.apps.documents.columns import PageText
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import Attempt, OpenedFile, too_much_text
from edge.errors import InputError

_MOST_PAGES = 10_000
_MOST_IN_MEMORY = 4 << 20  # The bytes of a file that is read at once.
_HEADING_SIZE = 1.15  # A heading's letters are at least this much larger than the body's.
_HEADING_CHARS = 150
_PICTURE_SIDE = 1_760
_PICTURE_SCALE = 3.0  # Pixels of the longer side of scanned pages, and pixels per point, at most.
_WIDE_GAP = 1.4  # A gap between lines separates paragraphs if it is this much larger than the usual gap.
_LEADER = re.compile(r"(?:\.[ \t]?){4,}|(?:[_\-][ \t]?){8,}")
_SCANNED_SHARE = 0.05  # A page without text is scanned if its pictures cover so much of it.
_HYPHEN = "\ufffe"
_WRAPPED = re.compile("[\ufffe\x02]")

_HYPHENATED = re.compile(r"(?<=[^\W\d_]{2})-$")
_BROKEN = re.compile(rf"((?<![^\W_])[^\W_]+|){_HYPHEN}([^\W_]*)")
_COMPOUND = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_LISTED = re.compile(rb'"([a-z]{3,})":')
_AFFIXES = frozenset({
    "able", "anti", "auto", "back", "bench", "counter", "cross", "dis", "hood", "inter", "key", "less", "like", "mark",
    "micro", "mis", "out", "over", "pre", "sea", "ship", "some", "sub", "super", "tele", "trans", "under", "ward",
    "wards", "wise", "work",
})  # fmt: skip

_STAMP, _FIELD, _NOTES = 13, 20, frozenset({1, *range(3, 16)})  # Kinds of annotations (ISO 32000-1, 12.5.6.1).
_SHOWS_TEXT = re.compile(r"T[jJ]\b|\bDo\b|[)>\]]\s*['\"]")
"""Operators that show text, or another drawing (ISO 32000-1, annex A)."""

_WORDLESS = frozenset({1, 2, *range(5, 13), *range(14, 20)})
"""Kinds that draw no text: icons, links, shapes, marks and pop-up windows."""


@dataclass(slots=True)
class _PageLine:
    """A line of a page: height and baseline in points, and range in the page's text."""

    text: str
    number: int
    size: float
    base: float
    start: int
    end: int


def extract(file: OpenedFile) -> DocumentBlocks:
    with opened_pdf(file) as (document, pypdfium2):
        if len(document) > _MOST_PAGES:
            raise InputError(f"a PDF of {len(document):,} pages; {_MOST_PAGES:,} is the most that is read")
        scans: list[int] = []
        pages = list(_pages(document, pypdfium2, scans))
        title = " ".join(clean(document.get_metadata_value("Title")).split())
        damaged = [number for number, lines in enumerate(pages, 1) if lines is None]
        if not any(pages) and not damaged:
            scans = list(range(len(pages)))
        recognised, warning = _recognised(document, scans, file, alone=not any(pages)) if scans else ([], "")
    blocks = _document_blocks([lines or [] for lines in pages]) if any(pages) else []
    if not blocks and not recognised:
        if damaged:
            raise InputError("a damaged PDF: no page of it can be read")
        raise Skipped(Reason.NO_TEXT, warning or "no page shows text")
    if not meaningful(title):
        title = first_heading(blocks)
    if damaged:
        warning = f"damaged, and left out: page {_listed(damaged)}"
    return DocumentBlocks(meaningful(title), sorted([*blocks, *recognised], key=attrgetter("page")), warning=warning)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10]))


def _recognised(document: Any, scans: Sequence[int], file: OpenedFile, *, alone: bool) -> tuple[list[Block], str]:
    from edge.apps.documents.pictures import recognised, recognizer

    try:
        if file.attempt is Attempt.FRUGAL:
            raise InputError("scanned; it needs more memory than there is")
        pages = ((at + 1, partial(_picture, document, at)) for at in scans)
        return recognised(pages, recognizer(), file)
    except InputError as error:
        if alone:
            raise
        return [], f"left out: page {_listed([at + 1 for at in scans])} ({error})"


@contextmanager
def opened_pdf(file: OpenedFile) -> Iterator[tuple[Any, Any]]:
    """Yields the document and pypdfium2."""
    import pypdfium2

    try:
        # The library calls back for each piece of a file that is not in memory.
        document = pypdfium2.PdfDocument(file.read() if file.nbytes <= _MOST_IN_MEMORY else file.stream)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD or "password" in str(error).lower():
            raise Skipped(Reason.ENCRYPTED, "the PDF needs a password") from error
        raise InputError(f"a damaged PDF ({error})") from error
    with document:
        if document.get_formtype():
            document.init_forms()
        yield document, pypdfium2


def _pages(document: Any, pypdfium2: Any, scans: list[int]) -> Iterator[list[_PageLine] | None]:
    """None for a damaged page. Scanned pages, counted from 0, are appended to `scans`."""
    chars = 0
    for index in range(len(document)):
        try:
            page = document[index]
            text_page = page.get_textpage()
        except pypdfium2.PdfiumError:
            yield None
            continue
        text = PageText(text_page, pypdfium2.raw)
        lines = _joined(_lines(text, pypdfium2.raw))
        if notes := list(_notes(page, document.formenv, pypdfium2.raw)):
            drawn = ""
            if any(note.draws for note in notes):
                text_page.close()
                pypdfium2.raw.FPDFPage_Flatten(page.raw, pypdfium2.raw.FLAT_NORMALDISPLAY)
                page.close()
                page = document[index]
                text_page = page.get_textpage()
                whole, shown = text_page.get_text_range(), text.read(0)
                drawn = whole[len(shown) :] if whole.startswith(shown) else ""
            _annotate(lines, notes, " ".join(clean(drawn).split()))
        chars += sum(len(line.text) for line in lines)
        if chars > MAX_TEXT_CHARS:
            raise too_much_text()
        if not lines and _is_scanned(page, pypdfium2.raw):
            scans.append(index)
        yield lines
        text_page.close()
        page.close()


def _is_scanned(page: Any, raw: Any) -> bool:
    edges = tuple(ctypes.c_float() for _ in range(4))
    covered = 0.0
    for found in page.get_objects(filter=(raw.FPDF_PAGEOBJ_IMAGE,)):
        if raw.FPDFPageObj_GetBounds(found.raw, *edges):
            left, bottom, right, top = (edge.value for edge in edges)
            covered += max(right - left, 0) * max(top - bottom, 0)
    width, height = page.get_size()
    return bool(covered > _SCANNED_SHARE * width * height)


class _Note(NamedTuple):
    """An annotation: its text, its lower and upper edge in points if it is the value of a form, and whether it may draw
    other text."""

    text: str
    bottom: float
    top: float
    draws: bool


def _notes(page: Any, form: Any, raw: Any) -> Iterator[_Note]:
    box = raw.FS_RECTF()
    for index in range(raw.FPDFPage_GetAnnotCount(page.raw)):
        note = raw.FPDFPage_GetAnnot(page.raw, index)
        kind = raw.FPDFAnnot_GetSubtype(note)
        text, bottom, top, field = "", math.inf, math.inf, raw.FPDF_FORMFIELD_UNKNOWN
        if kind == _FIELD and form is not None:
            field = raw.FPDFAnnot_GetFormFieldType(form.raw, note)
            if field not in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
                text = _string(raw.FPDFAnnot_GetFormFieldValue, form.raw, note)
            elif raw.FPDFAnnot_IsChecked(form.raw, note):
                text = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form.raw, note)
            raw.FPDFAnnot_GetRect(note, box)
            bottom, top = box.bottom, box.top
        elif kind in _NOTES:
            text = _string(raw.FPDFAnnot_GetStringValue, note, b"Contents")
        other = kind == _STAMP or field in (raw.FPDF_FORMFIELD_LISTBOX, raw.FPDF_FORMFIELD_COMBOBOX)
        draws = False
        if kind not in _WORDLESS and (other or not text):
            look = _string(raw.FPDFAnnot_GetAP, note, raw.FPDF_ANNOT_APPEARANCEMODE_NORMAL)
            draws = _SHOWS_TEXT.search(look) is not None
        if not draws:  # so that the page is flattened without it
            raw.FPDFAnnot_SetFlags(note, raw.FPDF_ANNOT_FLAG_HIDDEN)
        raw.FPDFPage_CloseAnnot(note)
        if text or draws:
            yield _Note(text, bottom, top, draws)


def _annotate(lines: list[_PageLine], notes: Sequence[_Note], drawn: str) -> None:
    """Adds the values of a form to the lines beside them, and notes and what is `drawn` besides, such as a signature,
    as lines behind the others."""
    found: list[str] = []
    for text in sorted((note.text for note in notes if note.draws and note.text), key=len, reverse=True):
        drawn = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "\n", drawn, count=1)
    for text, bottom, top, _ in notes:
        beside = [line for line in lines if text and line.size and bottom <= line.base <= top]
        if beside:
            beside[-1].text += f" {text}"
        else:
            found.append(text)
    for text in filter(meaningful, (*found, *drawn.split("\n"))):
        number = lines[-1].number + 1 if lines else 1
        lines.append(_PageLine(text.strip(), number, 0.0, -math.inf, 0, 0))


def _string(function: Any, *arguments: Any) -> str:
    size = min(function(*arguments, None, 0), 2 * MAX_TEXT_CHARS)
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return " ".join(clean(buffer.raw[: max(size - 2, 0)].decode("utf-16-le", "replace")).split())


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


def _lines(text: PageText, raw: Any) -> Iterator[_PageLine]:
    x, y, matrix = ctypes.c_double(), ctypes.c_double(), raw.FS_MATRIX()
    number = 0
    for begin, end, line in text.lines():
        if not line.isprintable():
            line = clean(_WRAPPED.sub(_HYPHEN, line.replace("\xad", "")))
        shown = " ".join(_LEADER.sub(" … ", line).split())
        if not shown:
            continue
        number += 1
        size = base = 0.0
        index = text.letter(begin)
        if index >= 0 and raw.FPDFText_GetCharOrigin(text.handle, index, x, y):
            base = y.value
        if index >= 0 and raw.FPDFText_GetMatrix(text.handle, index, matrix):
            size = raw.FPDFText_GetFontSize(text.handle, index) * math.hypot(matrix.c, matrix.d)
        yield _PageLine(shown, number, round(size, 1), base, begin, end)


def _joined(lines: Iterable[_PageLine]) -> list[_PageLine]:
    """Joins words that were hyphenated at the end of a line, with the mark `_HYPHEN`, on the first of the two lines."""
    found: list[_PageLine] = []
    for line in lines:
        before = found[-1] if found else None
        if before is not None and _HYPHENATED.search(before.text) and line.text[0].islower():
            rest, _, line.text = line.text.partition(" ")
            before.text = f"{before.text[:-1]}{_HYPHEN}{rest}"
        if line.text:
            found.append(line)
    return found


def _decide_hyphens(lines: Sequence[_PageLine]) -> None:
    """Keeps the hyphens of compounds, and removes those of words that the end of a line divides."""
    broken = {pair for line in lines if _HYPHEN in line.text for pair in _BROKEN.findall(line.text.lower())}
    if not broken:
        return
    forms = {between.join(pair) for pair in broken for between in ("", "-")}
    seen = {word for line in lines for word in _COMPOUND.findall(line.text.lower()) if word in forms}

    def whole(match: re.Match[str]) -> str:
        first, second = match.groups()
        one, other = first.lower(), second.lower()
        divided = (first[-1:].islower() and second[:1].islower()) or (first.isupper() and second.isupper())
        kept = not divided or f"{one}-{other}" in seen
        if not kept and one + other not in seen and not {one, other} & _AFFIXES:
            words = _words()
            kept = one.encode() in words and other.encode() in words and (one + other).encode() not in words
        return f"{first}{'-' if kept else ''}{second}"

    for line in lines:
        if _HYPHEN in line.text:
            line.text = _BROKEN.sub(whole, line.text)


@cache
def _words() -> frozenset[bytes]:
    from edge import models

    vocabulary = min(Path(models.__path__[0]).glob("bundled/*/tokenizer.json"))  # all have the same words
    return frozenset(_LISTED.findall(vocabulary.read_bytes()))


def _document_blocks(pages: Sequence[Sequence[_PageLine]]) -> list[Block]:
    _decide_hyphens([line for lines in pages for line in lines])
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
            text = "\n".join(line.text for line in paragraph)
            kind, path = "prose", outline.path
            level = levels.get(paragraph[0].size)
            if level and len(text) <= _HEADING_CHARS and any(map(str.isalpha, text)) and " … " not in text:
                kind, path = "heading", outline.enter(level, " ".join(text.split()))
            blocks.append(Block.of(((line.text, line.number) for line in paragraph), kind, path, page))
    return blocks


def _paragraphs(lines: Sequence[_PageLine], levels: Mapping[float, int]) -> Iterator[list[_PageLine]]:
    gaps = [before.base - line.base for before, line in pairwise(lines)]
    down = [gap for gap in gaps if 0 < gap < math.inf]
    usual = statistics.median_low(down) if down else 0.0
    start = 0
    for at, gap in enumerate(gaps, 1):
        before, line = lines[at - 1], lines[at]
        wide = not gap <= _WIDE_GAP * max(usual, before.size)  # two notes have no gap: it is no number
        moved_up = gap < 0 and before.text.endswith((".", "!", "?", ":"))
        if wide or moved_up or levels.get(before.size) != levels.get(line.size):
            yield list(lines[start:at])
            start = at
    if lines:
        yield list(lines[start:])


LONGER_SIDE = 1_400
"""Pixels: 120 per inch of A4."""

MOST_COMPRESSED = 4 * 10**6
"""Of a picture's rows. A page of text takes 0.1 MB, a photograph up to 3 MB."""

PICTURE_NBYTES = 4 * MOST_COMPRESSED
"""Memory for receiving a picture: the line of JSON, its text, and the file."""


@dataclass(frozen=True, slots=True)
class PagePicture:
    png: bytes
    width: int
    height: int
    pages: int
    marked: bool

    @staticmethod
    def of(answer: dict[str, Any]) -> PagePicture:
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
_LEVEL = 6

_Box = tuple[float, float, float, float]


def drawn(file: OpenedFile, page: int, lines: Collection[int]) -> dict[str, Any]:
    with opened_pdf(file) as (document, pypdfium2):
        if not 1 <= page <= len(document):
            raise InputError(f"there is no page {page}; the document has {len(document):,}")
        try:
            opened = document[page - 1]
            marked = _mark(opened, lines, pypdfium2.raw) if lines else False
            scale = min(LONGER_SIDE / max(*opened.get_size(), 1.0), _MOST_SCALE)
            bitmap = opened.render(scale=scale, rev_byteorder=True, force_bitmap_format=pypdfium2.raw.FPDFBitmap_BGR)
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
    """Lays a colour over lines of a page; returns whether the page has such lines."""
    text_page = page.get_textpage()
    text = PageText(text_page, raw)
    marks: list[_Box] = []
    for line in _lines(text, raw):
        first, last = text.letter(line.start), text.letter(line.end - 1)
        if line.number in lines and 0 <= first <= last:
            marks += _box_around(list(zip(*text.boxes(range(first, last + 1)), strict=True)))
    for left, top, right, bottom in marks:
        rectangle = raw.FPDFPageObj_CreateNewRect(left, bottom, right - left, top - bottom)
        raw.FPDFPageObj_SetFillColor(rectangle, *_MARK, 255)
        raw.FPDFPageObj_SetBlendMode(rectangle, b"Multiply")
        raw.FPDFPath_SetDrawMode(rectangle, raw.FPDF_FILLMODE_WINDING, False)
        raw.FPDFPage_InsertObject(page.raw, rectangle)
    return bool(marks)


def _box_around(boxes: list[_Box]) -> list[_Box]:
    """One box around the letters of a line; letters of rotated text keep theirs."""
    _, high, _, low = max(boxes, key=lambda box: box[1] - box[3])
    if any(bottom > high or top < low for _, top, _, bottom in boxes):
        return boxes
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return [(min(lefts), max(tops), max(rights), min(bottoms))]


def _compressed(bitmap: Any) -> Iterator[bytes]:
    """The rows of a PNG file, each after its filter byte (none), compressed as one stream."""
    packer = zlib.compressobj(_LEVEL)
    pixels = memoryview(bitmap.buffer).cast("B")
    for start in range(0, bitmap.height * bitmap.stride, bitmap.stride):
        yield packer.compress(b"\0" + pixels[start : start + 3 * bitmap.width])
    yield packer.flush()
