"""Pictures of text: image files and scanned PDFs, read in the worker with its sandbox and its memory."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.apps.documents import pictures
from edge.apps.documents.base import Reason, Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import Attached, Attempt
from edge.apps.documents.pictures import recognised
from edge.budget import MemoryBudget
from edge.errors import InputError

pytest.importorskip("rapidocr_onnxruntime", reason="the extra `ocr` is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra `ocr` is not installed")

LINES = ("The river floods in spring", "when the snow melts", "", "", "Bread needs time and salt")


def picture(lines: tuple[str, ...] = LINES, size: tuple[int, int] = (900, 420)) -> Any:
    from PIL import ImageDraw, ImageFont

    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((50, 40 + 60 * number), line, fill="black", font=ImageFont.load_default(36))
    return image


def saved(image: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "PDF"])
def test_the_worker_reads_pictures_within_its_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"scan.{kind.lower()}"
    path.write_bytes(saved(picture(), kind))
    budget = MemoryBudget(10**10)
    with Extractor(budget=budget) as extractor:
        found = extractor.extract(path)
    assert found.kind == ("image" if kind == "PNG" else "pdf")
    text = "\n".join(chunk.text for chunk in found.chunks)
    assert text.split("\n") == [line for line in LINES if line]
    assert {chunk.page for chunk in found.chunks} == {None if kind == "PNG" else 1}
    assert budget.holders().get("document worker", 0) == 0


def test_lines_beside_each_other_are_read_from_the_left() -> None:
    from edge.apps.documents.recognizer import Read, _in_order, components

    mask = np.zeros((12, 20), np.bool_)
    mask[1:3, 1:5] = mask[1:3, 8:19] = mask[6:10, 2:4] = mask[10, 4] = True
    assert sorted(components(mask)) == [(1, 1, 5, 3), (2, 6, 5, 11), (8, 1, 19, 3)]
    u_shape = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 1]], np.bool_)
    assert components(u_shape) == [(0, 0, 3, 3)]
    right, left, below = Read("b", 50, 12, 90, 30), Read("a", 0, 10, 40, 30), Read("c", 0, 40, 40, 60)
    assert [line.text for line in _in_order([below, right, left])] == ["a", "b", "c"]


def test_what_is_no_picture_of_text(tmp_path: Path, session_extractor: Extractor) -> None:
    (tmp_path / "white.png").write_bytes(saved(picture(()), "PNG"))
    with pytest.raises(Skipped, match="shows no text"):
        session_extractor.extract(tmp_path / "white.png")
    (tmp_path / "bad.png").write_bytes(saved(picture(), "PNG")[:300])
    with pytest.raises(InputError, match="damaged picture"):
        session_extractor.extract(tmp_path / "bad.png")
    (tmp_path / "bomb.png").write_bytes(saved(Image.new("1", (20_000, 20_000)), "PNG"))
    with pytest.raises(Skipped) as large:
        session_extractor.extract(tmp_path / "bomb.png")
    assert large.value.reason is Reason.TOO_LARGE


class Reader:
    """Reads every page as one line. Takes a second for pages 1 and 2, then five, and has no memory for page 2."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def read(self, page: int) -> list[Any]:
        from edge.apps.documents.recognizer import Read

        self._clock[0] += 5 if page > 2 else 1
        if page == 2:
            raise RuntimeError("Failed to allocate memory")
        return [Read("text", 0, 0, 9, 9)]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    clock = [0.0]
    monkeypatch.setattr(pictures.time, "process_time", lambda: clock[0])
    return Reader(clock)


def recognise(reader: Reader, numbers: Iterable[int], file: Attached) -> tuple[list[int | None], str]:
    blocks, warning = recognised([(number, lambda number=number: number) for number in numbers], reader, file)
    return [block.page for block in blocks], warning


def test_pages_beyond_the_time_are_named(reader: Reader) -> None:
    file = Attached("scan.pdf", b"x")
    assert recognise(reader, range(3, 13), file) == ([3, 4], "of 10 pages of pictures the first 2 were recognised")
    assert recognise(reader, [3], file)[0] == [3]
    assert recognise(reader, [1], file) == ([], "of 1 pages of pictures the first 0 were recognised")


def test_a_page_that_does_not_fit_costs_the_page(reader: Reader) -> None:
    with pytest.raises(MemoryError):
        recognise(reader, [1, 2, 3], Attached("scan.pdf", b"x"))
    file = Attached("scan.pdf", b"x")
    file.attempt = Attempt.LAST
    pages, warning = recognise(reader, [1, 2, 3], file)
    assert pages == [1, 3]
    assert warning == "1 pictures need more memory than there is"


def test_square_pictures_fit_the_memory_and_small_ones_open_no_recognizer(
    tmp_path: Path, session_extractor: Extractor
) -> None:
    (tmp_path / "square.png").write_bytes(saved(picture(("Square pages are rare",), (1500, 1500)), "PNG"))
    (chunk,) = session_extractor.extract(tmp_path / "square.png").chunks
    assert chunk.text == "Square pages are rare"
    (tmp_path / "logo.png").write_bytes(saved(picture((), (300, 8)), "PNG"))
    with pytest.raises(Skipped, match="300 x 8 pixels shows no text"):
        session_extractor.extract(tmp_path / "logo.png")


def test_without_the_extra_the_way_to_it_is_named(no_ocr: None, tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"pip install 'edge-rag\[ocr\]'"):
        pictures.recognizer.__wrapped__()
    (tmp_path / "scan.png").write_bytes(saved(picture(), "PNG"))
    (tmp_path / "scan.pdf").write_bytes(saved(picture(), "PDF"))
    budget = MemoryBudget(10**10)
    with Extractor(budget=budget) as extractor:
        for name in ("scan.png", "scan.pdf"):
            with pytest.raises(Skipped, match=r"pip install 'edge-rag\[ocr\]'"):
                extractor.extract(tmp_path / name)
