"""Binary Office files: the rows of a sheet, and what is said where they cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.apps.documents import old_office
from edge.apps.documents.base import Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import OpenedFile
from edge.budget import MemoryBudget
from edge.errors import InputError

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def test_the_rows_of_a_sheet_have_the_names_of_their_columns(tmp_path: Path) -> None:
    pytest.importorskip("office_oxide")
    xlwt = pytest.importorskip("xlwt")
    book = xlwt.Workbook()
    sheet = book.add_sheet("Rain")
    rows = [("Region", "Month", "Rain"), ("Northfjord", "July", 112), ("South | east", "July", 81.5)]
    for number, row in enumerate(rows):
        for column, value in enumerate(row):
            sheet.write(number, column, value)
    book.save(str(tmp_path / "rain.xls"))
    with Extractor(budget=MemoryBudget(10**11)) as extractor:
        found = extractor.extract(tmp_path / "rain.xls")
    assert found.kind == "xls"
    text = "\n".join(chunk.text for chunk in found.chunks)
    assert "Region: Northfjord\nMonth: July\nRain: 112" in text
    assert "Region: South | east" in text


def test_a_document_keeps_its_headings_lists_and_tables_without_marks() -> None:
    text = "# The **offer**\n\nDear Ann,\nit holds.\n\n1. soap\n2. bread\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    blocks = list(old_office._blocks(text.split("\n"), is_sheet=False))
    assert [(block.kind, block.text) for block in blocks] == [
        ("heading", "The offer"), ("paragraph", "Dear Ann,"), ("paragraph", "it holds."), ("item", "1. soap"),
        ("item", "2. bread"), ("table", "a | b\n1 | 2"),
    ]  # fmt: skip


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.doc").write_bytes(OLE + b"x" * 600)
    monkeypatch.setitem(sys.modules, "office_oxide", None)
    with OpenedFile(tmp_path / "a.doc") as file, pytest.raises(Skipped, match=r"edge-rag\[office\]"):
        old_office.extract(file)


def test_a_thread_that_does_not_fit_is_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the file is read by a new worker. One that has read other files may have no room left for its stack."""
    library = pytest.importorskip("office_oxide")

    def no_thread(*_: object) -> None:
        raise library.OfficeOxideError("unsupported format: thread spawn failed: Resource temporarily unavailable")

    monkeypatch.setattr(library, "Document", SimpleNamespace(from_bytes=no_thread))
    (tmp_path / "a.xls").write_bytes(OLE + b"x" * 600)
    with OpenedFile(tmp_path / "a.xls") as file, pytest.raises(MemoryError):
        old_office.extract(file)


@pytest.mark.parametrize("suffix", ["doc", "xls", "ppt"])
def test_a_damaged_one_is_refused_in_a_sentence(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("office_oxide")
    (tmp_path / f"a.{suffix}").write_bytes(OLE + b"x" * 600)
    with Extractor(budget=MemoryBudget(10**11)) as extractor, pytest.raises(InputError, match="a damaged Office file"):
        extractor.extract(tmp_path / f"a.{suffix}")
