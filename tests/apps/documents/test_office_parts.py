"""Parts of office files beside the main text: comments, headers, drawings, list numbers, formulas; and binary files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import openpyxl
import pptx
import pytest
from making.office_files import rewritten, saved
from odf import draw, office, style, text
from odf.dc import Creator
from odf.opendocument import OpenDocumentText
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from edge.apps.documents import office as documents
from edge.apps.documents.base import Skipped
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import OpenedFile
from edge.budget import MemoryBudget
from edge.errors import InputError
from tests.apps.documents.conftest import NAMESPACES, Read, docx_of, texts


def paragraph(words: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{words}</w:t></w:r></w:p>"


def drawn(words: str) -> str:
    return f"<a:p><a:r><a:t>{words}</a:t></a:r></a:p>"


def root(name: str, inner: str) -> str:
    return f"<{name} {NAMESPACES}>{inner}</{name}>"


CHART = root(
    "c:chartSpace",
    f"<c:title>{drawn('Trout per town')}</c:title><c:ser><c:tx><c:v>Sold</c:v></c:tx><c:cat><c:v>Oslo</c:v><c:v>Bergen"
    "</c:v></c:cat><c:val><c:v>1</c:v><c:v>2</c:v></c:val></c:ser>",
)


@pytest.mark.parametrize(
    ("kind", "content", "path", "expected"),
    [
        ("comments", root("w:comments", f"<w:comment>{paragraph('Is it?')}</w:comment>"), ("Comments",), ["Is it?"]),
        ("header", root("w:hdr", paragraph("Kingfisher Ltd, tel 555")), ("Header",), ["Kingfisher Ltd, tel 555"]),
        ("footer", root("w:ftr", paragraph("Reference ZX-4471")), ("Footer",), ["Reference ZX-4471"]),
        ("footer", root("w:ftr", paragraph("- 12 -")), ("Footer",), []),
        ("diagramData", root("dgm:dataModel", f"<dgm:t>{drawn('Approve it')}</dgm:t>"), (), ["Approve it"]),
        ("chart", CHART, (), ["Trout per town", "Sold: Oslo 1, Bergen 2"]),
        ("footnotes", root("w:footnotes", paragraph("See below.")), (), ["See below."]),
    ],
)  # fmt: skip
def test_parts_of_a_docx_beside_its_text(
    read: Read, kind: str, content: str, path: tuple[str, ...], expected: list[str]
) -> None:
    document = read("a.docx", docx_of(paragraph("The text."), {"part.xml": (kind, content)}))
    assert texts(document) == ["The text.", *expected]
    assert {block.path for block in list(document.blocks)[1:]} == ({path} if expected else set())


def test_a_header_of_every_page_is_read_once_and_a_damaged_part_costs_itself(read: Read) -> None:
    header = ("header", root("w:hdr", paragraph("Kingfisher Ltd")))
    parts = {"h1.xml": header, "h2.xml": header, "c.xml": ("comments", "<w:comments"), "d.xml": ("chart", "<")}
    document = read("a.docx", docx_of(paragraph("The text."), parts))
    assert texts(document) == ["The text.", "Kingfisher Ltd"]
    assert document.warning == "parts that cannot be read: word/c.xml, a drawing"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chunk.htm", b"<html><body><h1>Terms</h1><p>An included paragraph.</p></body></html>"),
        ("chunk.docx", docx_of(paragraph("Terms", '<w:outlineLvl w:val="0"/>') + paragraph("An included paragraph."))),
        ("chunk.txt", b"Terms\n=====\n\nAn included paragraph.\n"),
    ],
)
def test_documents_that_a_docx_includes(read: Read, name: str, content: bytes) -> None:
    document = read("a.docx", docx_of('<w:altChunk r:id="r0"/>', {name: ("aFChunk", content)}))
    assert texts(document)[-1] == "An included paragraph."
    assert document.title == "Terms"


def level(depth: int, form: str, shown: str, start: int = 1) -> str:
    values = f'<w:start w:val="{start}"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{shown}"/>'
    return f'<w:lvl w:ilvl="{depth}">{values}</w:lvl>'


def item(words: str, depth: int, number: int = 1) -> str:
    return paragraph(words, f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>')


def test_list_numbers_are_those_of_word(read: Read) -> None:
    levels = (
        level(0, "decimal", "Section %1", 12) + level(1, "decimal", "%1.%2") + level(2, "lowerLetter", "(%3)")
        + level(3, "upperRoman", "%4.") + level(4, "bullet", "o")
    )  # fmt: skip
    numbering = root(
        "w:numbering",
        f'<w:abstractNum w:abstractNumId="0">{levels}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
        '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="3"/>'
        "</w:lvlOverride></w:num>",
    )
    styles = root(
        "w:styles",
        '<w:style w:styleId="Clause"><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr></w:pPr>'
        "</w:style>"
        '<w:style w:styleId="Clause2"><w:basedOn w:val="Clause"/></w:style>',
    )
    body = (
        item("Term", 0) + item("Notice", 1) + item("by mail", 2) + item("by fax", 2) + item("now", 3) + item("dot", 4)
        + paragraph("Payment", '<w:pStyle w:val="Clause2"/>') + item("plain", 1, 0) + item("Law", 0)
        + f"<w:tbl><w:tr><w:tc>{item('Court', 1)}</w:tc></w:tr></w:tbl>" + item("Again", 0, 2) + item("More", 0, 2)
    )  # fmt: skip
    document = read("a.docx", docx_of(body, {"n.xml": ("numbering", numbering), "s.xml": ("styles", styles)}))
    assert texts(document) == [
        "Section 12 Term", "12.1 Notice", "(a) by mail", "(b) by fax", "I. now", "dot", "12.2 Payment", "plain",
        "Section 13 Law", "13.1 Court", "Section 3 Again", "Section 4 More",
    ]  # fmt: skip
    assert [block.text for block in document.blocks if block.kind == "paragraph"] == ["plain"]


OPEN_TEXT = (
    '<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'office:mimetype="application/vnd.oasis.opendocument.text"><office:styles>{0}</office:styles>'
    "<office:body><office:text>{1}</office:text></office:body></office:document>"
)


def open_list(items: str, attributes: str = 'text:style-name="L"') -> str:
    return f"<text:list {attributes}>{items}</text:list>"


def open_item(words: str, inner: str = "", attributes: str = "") -> str:
    return f"<text:list-item {attributes}><text:p>{words}</text:p>{inner}</text:list-item>"


@pytest.mark.parametrize(
    ("form", "last"),
    [("lowerLetter", "bb"), ("upperLetter", "BB"), ("lowerRoman", "xxviii"), ("decimalZero", "28"), ("new", "28")],
)
def test_numbers_of_a_long_list(read: Read, form: str, last: str) -> None:
    numbering = root(
        "w:numbering",
        f'<w:abstractNum w:abstractNumId="0">{level(0, form, "%1)")}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>',
    )
    body = "".join(item("x", 0) for _ in range(28))
    assert texts(read("a.docx", docx_of(body, {"n.xml": ("numbering", numbering)})))[-1] == f"{last}) x"


def test_list_numbers_are_those_of_an_opendocument_text(read: Read) -> None:
    levels = (
        ("outline-style", "outline-level-style", [("1", 'style:num-suffix="."'), ("1", 'text:display-levels="2"')]),
        ("list-style", "list-level-style-number", [
            ("1", 'style:num-prefix="Section " text:start-value="12"'), ("1", 'text:display-levels="2"'),
            ("a", 'style:num-prefix="(" style:num-suffix=")"'), ("I", 'style:num-suffix="."'), ("", ""),
        ]),
    )  # fmt: skip
    styles = "".join(
        f'<text:{kind} style:name="L">'
        + "".join(
            f'<text:{level} text:level="{at}" style:num-format="{form}" {other}/>'
            for at, (form, other) in enumerate(forms, 1)
        )
        + f"</text:{kind}>"
        for kind, level, forms in levels
    )
    deeper = open_list(open_item("now", open_list(open_item("dot"), "")), "")
    third = open_list(open_item("by mail") + open_item("by fax", deeper), "")
    second = open_list(open_item("Notice", third) + open_item("Payment"), "")
    body = (
        '<text:h text:outline-level="1">Terms</text:h><text:h text:outline-level="2">Parties</text:h>'
        + open_list(open_item("Term", f"<text:p>of a year</text:p>{second}") + open_item("Law"))
        + "<text:p>plain</text:p>"
        + open_list(open_item("More"), 'text:style-name="L" text:continue-numbering="true"')
        + open_list(open_item("Again") + open_item("Later", "", 'text:start-value="40"') + open_item("Last"))
        + '<text:h text:outline-level="2">Courts</text:h><text:h text:outline-level="1">Rest</text:h>'
        + open_list(open_item("unknown"), 'text:style-name="X"')
    )
    assert texts(read("a.fodt", OPEN_TEXT.format(styles, body).encode())) == [
        "1. Terms", "1.1 Parties", "Section 12 Term", "of a year", "12.1 Notice", "(a) by mail", "(b) by fax", "I. now",
        "dot", "12.2 Payment", "Section 13 Law", "plain", "Section 14 More", "Section 12 Again", "Section 40 Later",
        "Section 41 Last", "1.2 Courts", "2. Rest", "unknown",
    ]  # fmt: skip


def test_parts_of_a_formula_and_the_alternative_text_of_a_picture(read: Read) -> None:
    formula = "<m:f><m:num><m:r><m:t>voltage</m:t></m:r></m:num><m:den><m:r><m:t>resistance</m:t></m:r></m:den></m:f>"
    picture = (
        '<w:r><w:drawing><wp:inline><wp:docPr id="1" name="p" descr="A heron at dawn"/></wp:inline></w:drawing></w:r>'
    )
    body = f"<w:p><w:r><w:t>It is</w:t></w:r><m:oMath>{formula}</m:oMath></w:p><w:p>{picture}</w:p>"
    assert texts(read("a.docx", docx_of(body))) == ["It is voltage resistance", "A heron at dawn"]


def test_charts_and_pictures_of_slides(read: Read) -> None:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Sales"
    data = CategoryChartData()
    data.categories = ["Oslo", "Bergen"]
    data.add_series("Trout sold", (1, 2))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, Inches(4), Inches(3), data)
    slide.shapes[-1]._element.nvGraphicFramePr.cNvPr.set("descr", "A chart of trout")
    slide.notes_slide.notes_text_frame.text = "Say why."
    document = read("a.pptx", saved(deck))
    assert texts(document) == ["Sales", "A chart of trout", "Trout sold: Oslo 1, Bergen 2", "Say why."]
    assert [block.line_start for block in document.blocks] == [1, 2, 3, 4]


def test_shapes_charts_and_comments_of_sheets(read: Read) -> None:
    from openpyxl.chart import BarChart, Reference
    from openpyxl.comments import Comment

    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row in (["Town", "Trout"], ["Oslo", 1], ["Bergen", 2]):
        sheet.append(row)
    sheet["A2"].comment = Comment("buy before the auction", "Ann")
    chart = BarChart()
    chart.title = "Trout per town"
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=3), titles_from_data=True)
    sheet.add_chart(chart, "D5")
    shape = f"<xdr:from><xdr:row>6</xdr:row></xdr:from><xdr:sp>{drawn('A box')}</xdr:sp>"
    anchor = f"<xdr:oneCellAnchor>{shape}</xdr:oneCellAnchor></wsDr>".encode()
    data = rewritten(
        saved(book), "xl/drawings/drawing1.xml",
        lambda xml: xml.replace(b"</wsDr>", anchor).replace(b"<wsDr ", f"<wsDr {NAMESPACES} ".encode()),
    )  # fmt: skip
    blocks = [block for block in read("a.xlsx", data).blocks if block.kind == "lines"]
    assert {(block.text, block.line_start) for block in blocks} == {
        ("A2: buy before the auction", 2), ("A box", 7), ("Trout per town", 5),
    }  # fmt: skip
    assert {block.path for block in blocks} == {("Sheet",)}


def test_comments_headers_and_charts_of_an_opendocument_text(read: Read) -> None:
    document = OpenDocumentText()
    paragraph = text.P(text="The text.")
    note = office.Annotation()
    note.addElement(Creator(text="Ann"))
    note.addElement(text.P(text="Is it so?"))
    paragraph.addElement(note)
    document.text.addElement(paragraph)
    layout = style.PageLayout(name="L")
    document.automaticstyles.addElement(layout)
    master = style.MasterPage(name="Standard", pagelayoutname=layout)
    header = style.Header()
    header.addElement(text.P(text="Kingfisher Ltd"))
    master.addElement(header)
    document.masterstyles.addElement(master)
    chart = OpenDocumentText()
    chart.text.addElement(text.P(text="Trout per town"))
    frame = draw.Frame()
    frame.addElement(draw.Object(href=document.addObject(chart)))
    box = text.P()
    box.addElement(frame)
    document.text.addElement(box)
    assert texts(read("a.odt", saved(document))) == ["The text.", "Is it so?", "Trout per town", "Kingfisher Ltd"]


def test_letters_of_the_symbol_font(read: Read) -> None:
    def symbol(code: str, font: str = "Symbol") -> str:
        return f'<w:r><w:sym w:font="{font}" w:char="{code}"/></w:r>'

    signs = symbol("F071") + symbol("f053") + symbol("F0DF", "Wingdings") + symbol("zz")
    angle = docx_of(f"<w:p>{signs}<w:r><w:t> angle</w:t></w:r></w:p>")
    assert [block.text for block in read("a.docx", angle).blocks] == ["θΣ angle"]


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
    blocks = list(documents._old_blocks(text.split("\n"), is_sheet=False))
    assert [(block.kind, block.text) for block in blocks] == [
        ("heading", "The offer"), ("paragraph", "Dear Ann,"), ("paragraph", "it holds."), ("item", "1. soap"),
        ("item", "2. bread"), ("table", "a | b\n1 | 2"),
    ]  # fmt: skip


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.doc").write_bytes(OLE + b"x" * 600)
    monkeypatch.setitem(sys.modules, "office_oxide", None)
    with OpenedFile(tmp_path / "a.doc") as file, pytest.raises(Skipped, match=r"edge-rag\[office\]"):
        documents.extract_old(file)


def test_a_thread_that_does_not_fit_is_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the file is read by a new worker. One that has read other files may have no room left for its stack."""
    library = pytest.importorskip("office_oxide")

    def no_thread(*_: object) -> None:
        raise library.OfficeOxideError("unsupported format: thread spawn failed: Resource temporarily unavailable")

    monkeypatch.setattr(library, "Document", SimpleNamespace(from_bytes=no_thread))
    (tmp_path / "a.xls").write_bytes(OLE + b"x" * 600)
    with OpenedFile(tmp_path / "a.xls") as file, pytest.raises(MemoryError):
        documents.extract_old(file)


@pytest.mark.parametrize("suffix", ["doc", "xls", "ppt"])
def test_a_damaged_one_is_refused_in_a_sentence(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("office_oxide")
    (tmp_path / f"a.{suffix}").write_bytes(OLE + b"x" * 600)
    with Extractor(budget=MemoryBudget(10**11)) as extractor, pytest.raises(InputError, match="a damaged Office file"):
        extractor.extract(tmp_path / f"a.{suffix}")
