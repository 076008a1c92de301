"""Tables with merged cells in every format: each row has the merged value. Names of columns that occur twice."""

from __future__ import annotations

import pytest
from making.office_files import container

from tests.apps.documents.conftest import TYPES, Read, docx_of, relations

_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_ODF = "urn:oasis:names:tc:opendocument:xmlns"


def word_table(*rows: list[tuple[str, str]]) -> bytes:
    """A table of cells with properties."""
    cells = (
        "".join(f"<w:tc><w:tcPr>{about}</w:tcPr><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>" for about, text in row)
        for row in rows
    )
    return docx_of(f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>")


def pptx(rows: str) -> bytes:
    slide = f'<p:sld xmlns:p="p" xmlns:a="{_DRAWING}"><p:graphicFrame><a:tbl>{rows}</a:tbl></p:graphicFrame></p:sld>'
    main = f'<p:presentation xmlns:p="p" xmlns:r="{TYPES}"><p:sldId r:id="r0"/></p:presentation>'
    return container(
        {
            "ppt/presentation.xml": main,
            "ppt/_rels/presentation.xml.rels": relations({"slide.xml": "slide"}),
            "ppt/slide.xml": slide,
        }
    )


def slide_row(*cells: str) -> str:
    shown = (cell.rpartition(":") for cell in cells)
    inner = (f"<a:tc {about}><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:tc>" for about, _, text in shown)
    return f"<a:tr>{''.join(inner)}</a:tr>"


def xlsx(rows: list[list[str]], *merged: str) -> bytes:
    cells = (
        "".join(
            f'<c r="{chr(65 + column)}{number}" t="inlineStr"><is><t>{text}</t></is></c>'
            for column, text in enumerate(row)
            if text
        )
        for number, row in enumerate(rows, 1)
    )
    data = "".join(f'<row r="{number}">{row}</row>' for number, row in enumerate(cells, 1))
    spans = "".join(f'<mergeCell ref="{span}"/>' for span in merged)
    sheet = f'<worksheet xmlns="{_SHEET}"><sheetData>{data}</sheetData><mergeCells>{spans}</mergeCells></worksheet>'
    main = f'<workbook xmlns="{_SHEET}" xmlns:r="{TYPES}"><sheet name="S" r:id="r0"/></workbook>'
    return container(
        {
            "xl/workbook.xml": main,
            "xl/_rels/workbook.xml.rels": relations({"sheet.xml": "worksheet"}),
            "xl/sheet.xml": sheet,
        }
    )


def flat_odf(kind: str, rows: str) -> str:
    return (
        f'<office:document xmlns:office="{_ODF}:office:1.0" xmlns:table="{_ODF}:table:1.0" '
        f'xmlns:text="{_ODF}:text:1.0" office:mimetype="x"><office:body><office:{kind}>'
        f'<table:table table:name="S">{rows}</table:table></office:{kind}></office:body></office:document>'
    )


def odf_row(*cells: str) -> str:
    inner = (
        f"<table:table-cell {about}><text:p>{text}</text:p></table:table-cell>"
        if text
        else "<table:covered-table-cell/>"
        for about, _, text in (cell.rpartition(":") for cell in cells)
    )  # fmt: skip
    return f"<table:table-row>{''.join(inner)}</table:table-row>"


_DOWN, _BEGUN = '<w:vMerge w:val="continue"/>', '<w:vMerge w:val="restart"/>'
_RAIN = [["Region", "Month", "Rain"], ["Northfjord", "May", "81"], ["", "July", "112"]]
_ODF_RAIN = (
    odf_row(":Region", ":Month", ":Rain")
    + odf_row("table:number-rows-spanned='2':Northfjord", ":May", ":81")
    + odf_row("", ":July", ":112")
)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.xlsx", xlsx(_RAIN, "A2:A3"), ["Region: Northfjord\nMonth: July\nRain: 112"]),
        ("text.xlsx", xlsx([["Key", "mergeCell ref='A2:A3'"], ["b", "c"], ["", "d"]]), ["mergeCell ref='A2:A3': d"]),
        ("title.xlsx", xlsx([["Rain"], [""], *_RAIN], "A1:C2", "A4:A5"), ["Rain", "Region | Month | Rain"]),
        (
            "groups.xlsx",
            xlsx([["Station", "Rain", "", "Wind", ""], ["", "June", "July", "June", "July"], ["Moss", *"4567"]],
                 "A1:A2", "B1:C1", "D1:E1"),
            ["Station: Moss\nRain June: 4\nRain July: 5\nWind June: 6\nWind July: 7"],
        ),
        ("a.docx", word_table([(_BEGUN, "Northfjord"), ("", "May")], [("<w:vMerge/>", ""), ("", "July")]),
         ["Northfjord | May\nNorthfjord | July"]),
        ("span.docx", word_table([('<w:gridSpan w:val="2"/>', "a"), (_BEGUN, "b")],
                                 [("", "c"), ("", "d"), (_DOWN, "")], [("", ""), ("", ""), (_DOWN, "")]),
         ["a | b\nc | d | b"]),
        ("a.pptx", pptx(slide_row('rowSpan="2":North', ":May") + slide_row('vMerge="1":', ":July")),
         ["North | July"]),
        ("a.fodt", flat_odf("text", _ODF_RAIN),
         ["Region | Month | Rain\nNorthfjord | May | 81\nNorthfjord | July | 112"]),
        ("a.fods", flat_odf("spreadsheet", _ODF_RAIN), ["Region: Northfjord\nMonth: July\nRain: 112"]),
        ("a.html", "<table><tr><td rowspan=2>Northfjord<td>May<td rowspan=3>mm<tr><td>July<tr><td>x<td>y</table>",
         ["Northfjord | May | mm", "Northfjord | July | mm", "x | y | mm"]),
        ("p.html", "<table><tr><td rowspan=2><p>North</p></td><td><p>May</p></td></tr><tr><td><p>July</p></td></table>",
         ["North | May", "North | July"]),
        ("twice.csv", "name,phone,phone\nAnn,12,13\nBo,14,15\n", ["name: Ann\nphone 1: 12\nphone 2: 13"]),
        ("values.csv", "yes,no,no\nno,yes,no\n", ["yes\nno\nno", "no\nyes\nno"]),
    ],
)  # fmt: skip
def test_each_row_has_the_value_of_its_merged_cells(
    read: Read, name: str, data: str | bytes, expected: list[str]
) -> None:
    texts = [block.text for block in read(name, data).blocks]
    assert [text for text in texts if text in expected] == expected, texts


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.html", "<p><ruby>東京<rp>(</rp><rt>とうきょう</rt><rp>)</rp></ruby>の桜</p>"),
        ("a.docx", docx_of("<w:p><w:r><w:ruby><w:rt><w:r><w:t>とうきょう</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>"
                        "東京</w:t></w:r></w:rubyBase></w:ruby></w:r><w:r><w:t>の桜</w:t></w:r></w:p>")),
    ],
)  # fmt: skip
def test_of_ruby_the_base_is_read(read: Read, name: str, data: str | bytes) -> None:
    assert [block.text for block in read(name, data).blocks] == ["東京の桜"]


def test_raised_letters_belong_to_their_word(read: Read) -> None:
    (block,) = read("a.html", "<p>5 mc<sup>\n2\n</sup> of H<sub>2</sub>O</p>").blocks
    assert block.text.startswith("5 mc2\n")
    assert "H2O" in block.text
