"""Titles that programs left, and titles that people gave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.apps.documents.base import meaningful


@pytest.mark.parametrize(
    "title",
    [
        "(anonymous)", "untitled", "Untitled-1", "Untitled document", "Microsoft Word - x.doc",
        "PowerPoint Presentation",
        "Document1", "Slide 1", "paper.dvi", "TeX output 1999.01.02:1200", "- ", "12", "Unbenannt", "title",
        "Microsoft PowerPoint - Vortrag.ppt [Kompatibilitätsmodus]", "C:\\temp\\letter.doc", "scan0001", "()",
    ],
)  # fmt: skip
def test_placeholders_say_nothing(title: str) -> None:
    assert meaningful(title) == ""


@pytest.mark.parametrize(
    "title",
    [
        "Draft of the constitution", "Document management", "Titles", "Old ice", "Sheet music of Bach", "2020 report",
        "Microsoft's history", "Apple pie recipes", "LaTeX for beginners", "Untitled Goose Game: a review", "C++",
        "The unknown soldier", "Adobe houses of Taos",
    ],
)  # fmt: skip
def test_real_titles_stay(title: str) -> None:
    assert meaningful(title) == title


def test_a_pdf_without_a_title_of_its_own_takes_its_heading_or_its_name(
    session_extractor: object, make_pdf: Callable[..., bytes], tmp_path: object
) -> None:
    from pathlib import Path

    from edge.apps.documents.extraction import Extractor

    assert isinstance(session_extractor, Extractor)
    assert isinstance(tmp_path, Path)
    page = [(72, 720, 20, "Rivers"), (72, 690, 11, "They rise when the snow melts, and fall again.")]
    for name, runs, expected in (("a.pdf", page, "Rivers"), ("b.pdf", page[1:], "b.pdf")):
        (tmp_path / name).write_bytes(make_pdf([runs], title="(anonymous)"))
        assert session_extractor.extract(tmp_path / name).title == expected
