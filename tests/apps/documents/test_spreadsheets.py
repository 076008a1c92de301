"""XLSX and OpenDocument files, made by libraries that write them."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making.office_files import rewritten, saved
from odf import draw, style, table, text
from odf.opendocument import OpenDocumentPresentation, OpenDocumentSpreadsheet, OpenDocumentText

from edge.apps.documents import archive, tables
from edge.apps.documents.base import DocumentBlocks, Reason, Skipped
from edge.errors import InputError
from tests.apps.documents.conftest import Read


def shape(document: DocumentBlocks) -> list[tuple[Any, ...]]:
    return [(b.page, b.line_start, b.kind, b.path, b.text) for b in document.blocks]


@pytest.fixture
def workbook() -> Any:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Rents"
    sheet.append(["tenant", "amount", "paid", "at"])
    sheet.append(["Ann", 850.5, date(2026, 3, 1), time(14, 30)])
    sheet.append([])
    sheet.append(["Bo", 0.1 + 0.2, datetime(2026, 3, 2, 9, 15), None])
    sheet.append(["Cy", True, "=A2&B2", "two\nlines"])
    other = book.create_sheet("Notes")
    other["C7"] = "Only here"
    book.create_sheet("Empty")
    book.properties.title = "All rents"
    return book


def test_sheets_rows_and_values(read: Read, workbook: Any) -> None:
    document = read("a.xlsx", saved(workbook))
    assert document.title == "All rents"
    assert shape(document) == [
        (1, 1, "columns", ("Rents",), "tenant | amount | paid | at"),
        (1, 2, "row", ("Rents",), "tenant: Ann\namount: 850.5\npaid: 2026-03-01\nat: 14:30:00"),
        (1, 4, "row", ("Rents",), "tenant: Bo\namount: 0.3\npaid: 2026-03-02 09:15:00"),
        (1, 5, "row", ("Rents",), "tenant: Cy\namount: true\nat: two lines"),  # the formula was never computed
        (2, 7, "row", ("Notes",), "Only here"),
    ]


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (0.075, "0.0%", "7.5%"),
        (0.1234, "0%", "12%"),
        (42, "00000", "00042"),
        (123456789, "000-00-0000", "123-45-6789"),
        (1234567890123456, "General", "1234567890123456"),
        (-1234567890123456, "0", "-1234567890123456"),
        (0.1 + 0.2, "General", "0.3"),
        (1234.5, '"€"#,##0.00', "€1,234.50"),
        (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
        (-12.3, "#,##0.00_);[Red](#,##0.00)", "(12.30)"),
        (-12.3, "#,##0.00", "-12.30"),
        (-0.001, "0.00", "0.00"),
        (0.125, "0.00", "0.13"),
        (0, '0;-0;"none"', "none"),
        (1234567, "#,##0,", "1,235"),
        (5, "0.##", "5"),
        (7, '0 "kg"', "7 kg"),
        (0.5, "# ?/?", "0.5"),
        (12000, "0.00E+00", "12000"),
        (1e300, "0.00", "1e+300"),
        (3, "0." + "0" * 200, "3"),
        (45720.6041666, "dd/mm/yyyy hh:mm", "2025-03-04 14:30:00"),
    ],
)
def test_numbers_are_as_the_sheet_shows_them(read: Read, value: float, code: str, expected: str) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet["A1"] = value
    sheet["A1"].number_format = code
    assert [block.text for block in read("a.xlsx", saved(book)).blocks] == [expected]


@given(st.from_regex(r"-?[0-9]{1,12}(\.[0-9]{0,6})?", fullmatch=True))
def test_a_number_without_a_format_has_its_shortest_form(stored: str) -> None:
    assert tables.shown(stored, "") == (stored if "." not in stored else f"{float(stored):.15g}")


def test_without_a_suffix_the_content_tells(read: Read, workbook: Any) -> None:
    assert shape(read("rents", saved(workbook)))[0][4] == "tenant | amount | paid | at"
    document = OpenDocumentText()
    document.text.addElement(text.P(text="A river."))
    assert shape(read("river", saved(document))) == [(None, 1, "paragraph", (), "A river.")]


def test_what_is_too_large_or_damaged_is_refused(read: Read, workbook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Skipped) as nothing:
        read("a.xlsx", saved(openpyxl.Workbook()))
    assert nothing.value.reason is Reason.NO_TEXT
    name = "xl/worksheets/sheet1.xml"
    with pytest.raises(InputError, match="is not XML"):
        read("a.xlsx", rewritten(saved(workbook), name, lambda xml: xml[:-40]))
    with pytest.raises(InputError, match="no column"):
        read("a.xlsx", rewritten(saved(workbook), name, lambda xml: xml.replace(b'r="A2"', b'r="ZZZ2"')))
    monkeypatch.setattr(archive, "MAX_PARTS_BYTES", 4_000)
    with pytest.raises(InputError, match="unpack to more than"):
        read(
            "a.xlsx",
            rewritten(saved(workbook), name, lambda xml: xml.replace(b"<sheetData>", b"<sheetData>" + b" " * 10**6)),
        )


def test_odt_headings_lists_tables_and_notes(read: Read) -> None:
    document = OpenDocumentText()
    document.text.addElement(text.H(outlinelevel=1, text="Rivers"))
    paragraph = text.P(text="They rise")
    paragraph.addElement(text.S(c=10**8))
    paragraph.addText("in spring")
    note = text.Note(noteclass="footnote")
    note.addElement(text.NoteCitation(text="1"))
    body = text.NoteBody()
    body.addElement(text.P(text="When the snow melts."))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addElement(text.LineBreak())
    paragraph.addText("and fall.")
    document.text.addElement(paragraph)
    items = text.List()
    for name in ("Rhine", "Elbe"):
        item = text.ListItem()
        item.addElement(text.P(text=name))
        items.addElement(item)
    document.text.addElement(items)
    document.text.addElement(text.H(outlinelevel=2, text="Lengths"))
    rows = table.Table(name="t")
    for values in (("Rhine", "1,233 km"), ("Elbe", "1,112 km")):
        row = table.TableRow()
        for value in values:
            cell = table.TableCell()
            cell.addElement(text.P(text=value))
            row.addElement(cell)
        rows.addElement(row)
    document.text.addElement(rows)
    read_back = read("a.odt", saved(document))
    assert read_back.title == "Rivers"
    lengths = ("Rivers", "Lengths")
    assert shape(read_back) == [
        (None, 1, "heading", ("Rivers",), "Rivers"),
        (None, 2, "paragraph", ("Rivers",), "They rise in spring\nand fall."),
        (None, 3, "paragraph", ("Rivers",), "When the snow melts."),
        (None, 4, "item", ("Rivers",), "Rhine"),
        (None, 5, "item", ("Rivers",), "Elbe"),
        (None, 6, "heading", lengths, "Lengths"),
        (None, 7, "table", lengths, "Rhine | 1,233 km\nElbe | 1,112 km"),
    ]


def test_ods_repeated_cells_and_rows_are_no_bomb(read: Read) -> None:
    document = OpenDocumentSpreadsheet()
    sheet = table.Table(name="Rents")

    def add(values: list[str], *, repeated: int = 1, blank: int = 0) -> None:
        row = table.TableRow(numberrowsrepeated=repeated)
        if blank:
            row.addElement(table.TableCell(numbercolumnsrepeated=blank))
        for value in values:
            cell = table.TableCell()
            if value:
                cell.addElement(text.P(text=value))
            row.addElement(cell)
        row.addElement(table.TableCell(numbercolumnsrepeated=16_000))
        sheet.addElement(row)

    add(["tenant", "amount"])
    add([], repeated=900_000_000)
    add(["Ann", "850"], repeated=2)
    add(["deep"], blank=3)
    document.spreadsheet.addElement(sheet)
    assert shape(read("a.ods", saved(document))) == [
        (None, 1, "columns", ("Rents",), "tenant | amount"),
        (None, 900_000_002, "row", ("Rents",), "tenant: Ann\namount: 850"),
        (None, 900_000_004, "row", ("Rents",), "column 4: deep"),
    ]


def test_odp_slides_have_titles_and_notes(read: Read) -> None:
    document = OpenDocumentPresentation()
    layout = style.PageLayout(name="l")
    document.automaticstyles.addElement(layout)
    master = style.MasterPage(name="m", pagelayoutname=layout)
    document.masterstyles.addElement(master)
    for title, said in (("Rivers", "They rise."), ("Bread", "It needs time.")):
        page = draw.Page(masterpagename=master)
        for kind, shown in (("title", title), ("outline", said)):
            frame = draw.Frame()
            frame.setAttrNS("urn:oasis:names:tc:opendocument:xmlns:presentation:1.0", "class", kind)
            box = draw.TextBox()
            box.addElement(text.P(text=shown))
            frame.addElement(box)
            page.addElement(frame)
        document.presentation.addElement(page)
    assert shape(read("a.odp", saved(document))) == [
        (1, 1, "heading", ("Rivers",), "Rivers"),
        (1, 2, "paragraph", ("Rivers",), "They rise."),
        (2, 1, "heading", ("Bread",), "Bread"),
        (2, 2, "paragraph", ("Bread",), "It needs time."),
    ]


def test_an_encrypted_document_is_left_out(read: Read) -> None:
    document = OpenDocumentText()
    document.text.addElement(text.P(text="A river."))
    data = rewritten(
        saved(document), "META-INF/manifest.xml",
        lambda xml: xml.replace(b"</manifest:manifest>", b"<manifest:encryption-data/></manifest:manifest>"),
    )  # fmt: skip
    with pytest.raises(Skipped) as refused:
        read("a.odt", data)
    assert refused.value.reason is Reason.ENCRYPTED


def test_a_sheet_of_as_many_columns_as_there_may_be(read: Read) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet["A1"], sheet["XFD1"], sheet["A2"], sheet["XFD2"] = "name", "colour", "Ann", "turquoise"
    assert [block.text for block in read("a.xlsx", saved(book)).blocks] == [
        "name | colour", "name: Ann\ncolour: turquoise",
    ]  # fmt: skip
    wide = ",".join(map(str, range(16_384)))
    assert len(list(read("a.csv", wide.encode()).blocks)) == 1
    with pytest.raises(InputError, match="a row of 16,385 columns; 16,384 is the most that is read"):
        list(read("a.csv", f"{wide},x".encode()).blocks)
