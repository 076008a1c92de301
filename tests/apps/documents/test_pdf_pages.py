"""Pages of PDFs: their text in the order of reading, and their pictures."""

from __future__ import annotations

import base64
import io
import shutil
import struct
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from making.pdf import pdf_bytes

from edge.apps.documents.base import Extracted, Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.pdf import LONGER_SIDE, MOST_COMPRESSED, PagePicture, drawn
from edge.budget import MemoryBudget
from edge.errors import InputError
from tests.apps.documents.conftest import Bounds, Read

LETTER = [(72, 720, 11, "Cover letter of the contract.")]


def scan(text: str) -> bytes:
    """A PDF of one page, which is a picture of a text."""
    image = pytest.importorskip("PIL.Image", reason="the extra `ocr` is not installed")
    from PIL import ImageDraw, ImageFont

    picture = image.new("RGB", (900, 300), "white")
    ImageDraw.Draw(picture).text((50, 100), text, fill="black", font=ImageFont.load_default(48))
    buffer = io.BytesIO()
    picture.save(buffer, "PDF")
    return buffer.getvalue()


def together(*documents: bytes) -> bytes:
    import pypdfium2

    whole = pypdfium2.PdfDocument.new()
    for data in documents:
        whole.import_pages(pypdfium2.PdfDocument(data))
    buffer = io.BytesIO()
    whole.save(buffer)
    return buffer.getvalue()


def extracted(path: Path, data: bytes) -> Extracted:
    path.write_bytes(data)
    with Extractor(budget=MemoryBudget(10**10)) as extractor:
        return extractor.extract(path)


def by_page(found: Extracted) -> dict[int | None, str]:
    return {chunk.page: chunk.text for chunk in found.chunks}


def test_a_scanned_page_among_others(tmp_path: Path, with_and_without_ocr: bool) -> None:
    data = together(pdf_bytes([LETTER, []]), scan("Rent is due on Friday"), pdf_bytes([[(72, 720, 11, "The end.")]]))
    found = extracted(tmp_path / "a.pdf", data)
    pages = {1: "Cover letter of the contract.", 4: "The end."}
    if with_and_without_ocr:
        pages[3] = "Rent is due on Friday"
        assert found.warning == ""
    else:
        assert found.warning.startswith("left out: page 3 (pictures of text are read with the extra `ocr`")
    assert by_page(found) == pages
    assert [chunk.page for chunk in found.chunks] == sorted(pages)


def test_a_scanned_page_without_memory_for_it_costs_only_itself(tmp_path: Path, bounds: Bounds) -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the extra `ocr` is not installed")
    data = together(pdf_bytes([LETTER]), scan("Rent is due on Friday"))
    bounds(most=56 * 10**6)
    found = extracted(tmp_path / "a.pdf", data)
    assert by_page(found) == {1: "Cover letter of the contract."}
    assert found.warning == "left out: page 2 (scanned; it needs more memory than there is)"


def with_annotations(data: bytes, *notes: str) -> bytes:
    """A PDF with annotations on its first page."""
    numbers = range(90, 90 + len(notes))
    references = " ".join(f"{number} 0 R" for number in numbers).encode()
    objects = b"".join(b"%d 0 obj\n<< /Type /Annot %s >>\nendobj\n" % (n, note.encode("cp1252"))
                       for n, note in zip(numbers, notes, strict=True))  # fmt: skip
    data = data.replace(b"/Type /Catalog", b"/Type /Catalog /AcroForm << /Fields [%s] >>" % references)
    data = data.replace(b"/Resources", b"/Annots [%s] /Resources" % references, 1)
    return data.replace(b"trailer", objects + b"trailer", 1)


def test_values_of_a_form_stand_beside_their_names(read: Read) -> None:
    lines = [(72, 720, 11, "Name:"), (72, 690, 11, "Colour:"), (72, 660, 11, "The end.")]
    data = with_annotations(
        pdf_bytes([lines]),
        "/Subtype /Widget /FT /Tx /T (n) /V (Philippa  Oxbow) /Rect [150 715 350 735]",
        "/Subtype /Widget /FT /Ch /Ff 131072 /T (k) /Opt [(turquoise)] /V (turquoise) /Rect [150 685 350 705]",
        "/Subtype /Widget /FT /Tx /T (far) /V (far below) /Rect [72 100 350 120]",
        "/Subtype /Widget /FT /Btn /T (c) /TU (Send by post) /V /Yes /AS /Yes /Rect [72 300 90 320]",
        "/Subtype /Widget /FT /Btn /T (d) /TU (Send by fax) /V /Off /AS /Off /Rect [72 330 90 350]",
        "/Subtype /Widget /FT /Tx /T (empty) /Rect [150 655 350 675]",
    )
    blocks = list(read("a.pdf", data).blocks)
    assert [(block.text, block.line_start) for block in blocks] == [
        ("Name: Philippa Oxbow\nColour: turquoise\nThe end.", 1), ("far below", 4), ("Send by post", 5),
    ]  # fmt: skip


def test_values_of_a_form_are_in_the_picture_of_its_page(tmp_path: Path) -> None:
    rows = set()
    for value in ("Philippa", "Oxbow", ""):
        field = f"/Subtype /Widget /FT /Tx /T (n) /DA (/F1 11 Tf 0 g) /V ({value}) /Rect [150 500 350 535]"
        (tmp_path / "a.pdf").write_bytes(with_annotations(pdf_bytes([LETTER]), field))
        with OpenedFile(tmp_path / "a.pdf") as file:
            rows.add(drawn(file, 1, ())["rows"])
    assert len(rows) == 3


def test_what_is_drawn_over_a_page_belongs_to_it(read: Read) -> None:
    """A signature, a note whose contents its picture shows, and a field whose value is known; a hidden one is not
    drawn."""
    stream = "BT /F1 11 Tf 2 10 Td (%s) Tj ET"
    notes = ["/Subtype /Widget /FT /Sig /T (s) /F 4", "/Subtype /FreeText /F 4 /Contents (Call the plumber)"]
    notes.append("/Subtype /Widget /FT /Tx /T (t) /V (Twelve roses) /F 4")
    texts = ["Signed by Philippa Oxbow", "Call the plumber", "TWELVE ROSES"]
    data = with_annotations(
        pdf_bytes([LETTER]),
        *(
            f"{note} /Rect [72 {500 - 60 * at} 300 {540 - 60 * at}] /AP << /N {100 + at} 0 R >>"
            for at, note in enumerate([*notes, "/Subtype /FreeText /F 2"])
        ),
    )
    pictures = b"".join(
        b"%d 0 obj\n<< /Type /XObject /Subtype /Form /BBox [0 0 228 40] /Length %d "
        b"/Resources << /Font << /F1 3 0 R >> >> >>\nstream\n%s\nendstream\nendobj\n"
        % (100 + at, len(stream % text), (stream % text).encode())
        for at, text in enumerate([*texts, "Hidden words"])
    )
    blocks = read("a.pdf", data.replace(b"trailer", pictures + b"trailer", 1)).blocks
    assert [block.text for block in blocks] == [
        "Cover letter of the contract.", "Call the plumber", "Twelve roses", texts[0],
    ]  # fmt: skip


def test_notes_follow_the_text_of_their_page(read: Read) -> None:
    data = with_annotations(
        pdf_bytes([LETTER, [(72, 720, 11, "The second page.")]]),
        "/Subtype /FreeText /Rect [72 500 300 540] /Contents (Call the plumber)",
        "/Subtype /Text /Rect [72 400 92 420] /Contents (Ask the notary)",
        "/Subtype /Highlight /Rect [72 715 200 730] /Contents (Is this so?)",
        "/Subtype /Link /Rect [72 300 92 320] /Contents (no note)",
    )
    assert [(block.page, block.text) for block in read("a.pdf", data).blocks] == [
        (1, "Cover letter of the contract."), (1, "Call the plumber"), (1, "Ask the notary"), (1, "Is this so?"),
        (2, "The second page."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a price-", "determining factor"], "a price-determining factor"),
        (["a long-", "term plan of the permit-", "ted area"], "a long-term plan of the permitted area"),
        (["the environ-", "mental, inter-", "national trans-", "port"], "the environmental, international transport"),
        (
            ["The mani-", "pulation of objects that are", "well-known is a com-", "plicated, long story - or", "2-",
             "3 of them."],
            "The manipulation of objects that are well-known is a complicated, long story - or 2- 3 of them.",
        ),
        (["das Kranken-", "haus und die Verwal-", "tung"], "das Krankenhaus und die Verwaltung"),
        (["die E-Mail, eine e-", "mail"], "die E-Mail, eine e-mail"),
        (["a key-", "frame, and all keyframe lists"], "a keyframe, and all keyframe lists"),
    ],
)  # fmt: skip
def test_the_hyphen_of_a_compound_stays(read: Read, lines: Sequence[str], expected: str) -> None:
    page = [(72, 720 - 14 * n, 11, text) for n, text in enumerate(lines)]
    text = " ".join(" ".join(block.text for block in read("a.pdf", pdf_bytes([page])).blocks).split())
    assert text == expected


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        ("[(No) -220 (r) -220 (t) -220 (h ) -220 (D) -220 (r) -220 (i) -220 (v) -220 (e)] TJ", "North Drive"),
        ("[(fl) 288 ( ) 0 (ow)] TJ", "flow"),
        ("[(a river) -100 (side)] TJ", "a riverside"),
        ("[(a flood) -250 (river)] TJ", "a flood river"),
        ("[(1) -9000 (2)] TJ", "1 2"),
        ("-3 Tc 3 Tw (over the hill) Tj", "over the hill"),
    ],
)
def test_words_are_apart_as_far_as_their_letters(read: Read, operators: str, expected: str) -> None:
    shown = b"(%s) Tj" % (b"X" * len(operators))
    data = pdf_bytes([[(72, 720, 10, "X" * len(operators))]])
    assert shown in data
    (block,) = read("a.pdf", data.replace(shown, operators.encode().ljust(len(shown)))).blocks
    assert block.text == expected


def test_a_page_is_looked_at_as_a_whole_if_some_of_its_letters_are_apart(read: Read) -> None:
    """Lines that are drawn like the others, and one that is not."""
    operators = "[(No) -220 (r) -220 (t) -220 (h ) -220 (D) -220 (r) -220 (i) -220 (v) -220 (e)] TJ"
    for count, plain, expected in ((30, [], "North Drive"), (1, ["A plain line"] * 29, "North Drive")):
        texts = ["X" * len(operators)] * count
        data = pdf_bytes([[(72, 760 - 14 * at, 10, text) for at, text in enumerate([*plain, *texts])]])
        data = data.replace(b"(%s) Tj" % texts[0].encode(), operators.encode().ljust(len(operators) + 5))
        shown = "\n".join(block.text for block in read("a.pdf", data).blocks).split("\n")
        assert shown == [*plain, *[expected] * count]


def test_lines_below_letters_beyond_the_basic_plane_are_at_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts in UTF-16."""
    from pypdfium2 import raw

    from edge.apps.documents.columns import PageText

    class Page:
        raw = None

        def get_text_range(self) -> str:
            return "\U0001d449 = a\nb"

    monkeypatch.setattr(raw, "FPDFText_GetCharIndexFromTextIndex", lambda page, place: -1)
    page = PageText(Page(), raw)
    assert (len(page.text), page.text.index("b"), page.read(0)) == (8, 7, "\U0001d449 = a\nb")
    assert [line[2] for line in page.lines()] == ["\U0001d449 = a", "b"]


RIVER = [
    "The river floods in spring", "when the snow melts and", "comes down into the valley", "where people live in old",
    "houses on very high poles.",
]  # fmt: skip
BREAD = [
    "Bread needs time and flour", "and some water with salt", "so that the dough can rise",
    "for the whole night before", "it goes into a hot oven.",
]  # fmt: skip
BOATS = [
    "Boats lie on the dry bank", "until the water comes up", "and takes them to the sea", "where fishermen wait for",
    "them with their new nets.",
]  # fmt: skip


def rowwise(columns: Sequence[Sequence[str]], *, step: int, title: str = "", end: str = "") -> bytes:
    """A page whose rows go through all columns."""
    runs = [(60, 760, 16, title)] if title else []
    for row, texts in enumerate(zip(*columns, strict=True)):
        runs += [(60 + step * at, 700 - 13 * row, 10, text) for at, text in enumerate(texts)]
    return pdf_bytes([[*runs, *([(60, 560, 10, end)] if end else [])]])


@pytest.mark.parametrize(
    ("columns", "step"), [((RIVER, BREAD), 260), ((RIVER, BREAD), 150), ((RIVER, BREAD, BOATS), 165)]
)
@pytest.mark.parametrize(
    "end", ["", "A last line goes across the whole page below all of the columns, from edge to edge."]
)
def test_columns_are_apart(read: Read, tmp_path: Path, columns: Sequence[list[str]], step: int, end: str) -> None:
    data = rowwise(columns, step=step, title="A title above all", end=end)
    blocks = list(read("a.pdf", data).blocks)
    shown = "\n".join(block.text for block in blocks)
    expected = "\n".join(
        ["A title above all", *(line for column in columns for line in column), *([end] if end else [])]
    )
    assert shown == expected
    numbers = [number for block in blocks for number in block.lines or ()]
    assert numbers == list(range(1, len(expected.split("\n")) + 1))
    if shutil.which("pdftotext"):
        (tmp_path / "b.pdf").write_bytes(data)
        said = subprocess.run(["pdftotext", tmp_path / "b.pdf", "-"], capture_output=True, text=True, check=True).stdout
        assert said.split() == expected.split()


@pytest.mark.parametrize(
    "columns",
    [
        (["Elbe", "Oder", "Main", "Saale", "Havel"], ["1094 km", "866 km", "524 km", "413 km", "334 km"]),
        ([f"Number of the {n} customer" for n in "abcde"], ["Paid by the end of May"] * 5),
        (RIVER[:4], BREAD[:4]),
    ],
    ids=["numbers", "cells", "few rows"],
)
def test_rows_of_tables_stay(read: Read, columns: Sequence[list[str]]) -> None:
    shown = [line for block in read("a.pdf", rowwise(columns, step=260)).blocks for line in block.text.split("\n")]
    assert shown == [" ".join(row) for row in zip(*columns, strict=True)]


def test_many_gaps_take_no_time(read: Read) -> None:
    columns = [[f"w{row} and x y" for row in range(50)] for _ in range(40)]
    assert read("a.pdf", rowwise(columns, step=90)).blocks


PAGES = [
    [
        (72, 720, 20, "Rivers"), (72, 690, 11, "They rise in spring,"), (72, 676, 11, "when the snow melts."),
        (72, 600, 11, "End."),
    ],
    [(72, 720, 11, "The second page.")],
]  # fmt: skip
BASES = (720, 690, 676, 600)
HEIGHT = 792


def rows_of(picture: PagePicture) -> list[bytes]:
    """The rows of a PNG file's pixels, three bytes each."""
    at, content = 8, b""
    while at < len(picture.png):
        (length,) = struct.unpack_from(">I", picture.png, at)
        if picture.png[at + 4 : at + 8] == b"IDAT":
            content += picture.png[at + 8 : at + 8 + length]
        at += length + 12
    raw, step = zlib.decompress(content), 3 * picture.width + 1
    assert len(raw) == step * picture.height
    return [raw[start + 1 : start + step] for start in range(0, len(raw), step)]


def marked_rows(picture: PagePicture) -> list[float]:
    """Heights above the lower edge of the page, in points, of the rows that have a marked pixel."""
    scale = HEIGHT / picture.height
    return [
        HEIGHT - row * scale
        for row, pixels in enumerate(rows_of(picture))
        if any(red > 230 and blue < 160 for red, blue in zip(pixels[::3], pixels[2::3], strict=True))
    ]


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf_bytes(PAGES))
    return path


@pytest.mark.parametrize("lines", [(), (1,), (2, 3), (4,)])
def test_the_lines_of_a_passage_are_marked_and_no_others(
    session_extractor: Extractor, paper: Path, lines: tuple[int, ...]
) -> None:
    picture = session_extractor.picture(paper, 1, lines)
    assert (max(picture.width, picture.height), picture.pages, picture.marked) == (LONGER_SIDE, 2, bool(lines))
    found = marked_rows(picture)
    for number, base in enumerate(BASES, 1):
        assert any(base <= height <= base + 6 for height in found) == (number in lines)


def test_what_cannot_be_drawn_is_said_and_the_worker_goes_on(
    session_extractor: Extractor, paper: Path, tmp_path: Path
) -> None:
    for page in (0, 3, 10**9):
        with pytest.raises(InputError, match=rf"there is no page {page}; the document has 2"):
            session_extractor.picture(paper, page)
    (tmp_path / "text.pdf").write_text("no PDF at all")
    with pytest.raises(InputError, match="a damaged PDF"):
        session_extractor.picture(tmp_path / "text.pdf", 1)
    (tmp_path / "secret.pdf").write_bytes(pdf_bytes(PAGES, encrypted=True))
    with pytest.raises(Skipped, match="password"):
        session_extractor.picture(tmp_path / "secret.pdf", 1)
    with pytest.raises(Skipped):
        session_extractor.picture(tmp_path / "none.pdf", 1)
    assert session_extractor.extract(paper).kind == "pdf"


ROWS = base64.b64encode(zlib.compress(b"\0\0\0\0")).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0}, {"height": -1}, {"width": LONGER_SIDE + 1}, {"height": 10**9}, {"width": "wide"}, {"width": None},
        {"rows": "no base64"}, {"rows": 5}, {"rows": base64.b64encode(bytes(MOST_COMPRESSED + 1)).decode()},
        {"pages": []},
    ],
)  # fmt: skip
def test_a_worker_that_was_taken_over_decides_about_pixels_only(wrong: dict[str, Any]) -> None:
    answer = {"end": True, "width": 1, "height": 1, "pages": 1, "marked": False, "rows": ROWS}
    assert PagePicture.of(answer).png.startswith(b"\x89PNG")
    with pytest.raises(InputError, match="could not be drawn"):
        PagePicture.of({**answer, **wrong})
