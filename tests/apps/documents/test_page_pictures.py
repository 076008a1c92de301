"""Pages of a PDF as pictures: marked places, refusals, and the answers that a worker may give."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.documents.base import Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.pdf import LONGER_SIDE, MOST_COMPRESSED, PagePicture
from edge.errors import InputError

MakePdf = Callable[..., bytes]

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
def paper(make_pdf: MakePdf, tmp_path: Path) -> Path:
    path = tmp_path / "paper.pdf"
    path.write_bytes(make_pdf(PAGES))
    return path


@pytest.mark.parametrize("lines", [(), (1,), (2, 3), (4,)])
def test_the_lines_of_a_passage_are_marked_and_no_others(
    extractor: Extractor, paper: Path, lines: tuple[int, ...]
) -> None:
    picture = extractor.picture(paper, 1, lines)
    assert (max(picture.width, picture.height), picture.pages, picture.marked) == (LONGER_SIDE, 2, bool(lines))
    found = marked_rows(picture)
    for number, base in enumerate(BASES, 1):
        assert any(base <= height <= base + 6 for height in found) == (number in lines)


def test_line_numbers_are_those_of_the_index(extractor: Extractor, paper: Path) -> None:
    chunk = extractor.extract(paper).chunks[0]
    assert chunk.lines is not None
    wanted = [number for number, line in zip(chunk.lines, chunk.text.split("\n"), strict=True) if "snow" in line]
    found = marked_rows(extractor.picture(paper, 1, wanted))
    assert all(670 < height < 690 for height in found)


def test_the_second_page_has_lines_of_its_own(extractor: Extractor, paper: Path) -> None:
    assert extractor.picture(paper, 2, [1]).marked
    assert not extractor.picture(paper, 2, [2]).marked


def test_what_cannot_be_drawn_is_said_and_the_worker_goes_on(
    extractor: Extractor, paper: Path, make_pdf: MakePdf, tmp_path: Path
) -> None:
    for page in (0, 3, 10**9):
        with pytest.raises(InputError, match=rf"there is no page {page}; the document has 2"):
            extractor.picture(paper, page)
    (tmp_path / "text.pdf").write_text("no PDF at all")
    with pytest.raises(InputError, match="a damaged PDF"):
        extractor.picture(tmp_path / "text.pdf", 1)
    (tmp_path / "secret.pdf").write_bytes(make_pdf(PAGES, encrypted=True))
    with pytest.raises(Skipped, match="password"):
        extractor.picture(tmp_path / "secret.pdf", 1)
    with pytest.raises(Skipped):
        extractor.picture(tmp_path / "none.pdf", 1)
    assert extractor.extract(paper).kind == "pdf"


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
