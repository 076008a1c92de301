"""PDF, DOCX, PPTX and EPUB; where a library can build them, it is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from making.office_files import rewritten
from making.pdf import pdf_bytes

from edge.apps.documents import archive
from edge.apps.documents.base import DocumentBlocks, Reason, Skipped
from edge.errors import InputError
from tests.apps.documents.conftest import Read, docx_of, epub_bytes

CHAPTER = (
    '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>\n<h1>{0}</h1>\n<p>{1}</p></body></html>'
)


def shape(document: DocumentBlocks) -> list[tuple[Any, ...]]:
    return [(b.page, b.line_start, b.line_end, b.kind, b.path, b.text) for b in document.blocks]


# PDF


def test_pdf_paragraphs_headings_and_pages(read: Read) -> None:
    body = 11
    first = [
        (72, 720, 20, "Rivers"),
        (72, 690, 14, "Floods in spring"),
        (72, 670, body, "They rise when the snow"),
        (72, 656, body, "melts in the hills."),
        (72, 620, body, "Another paragraph."),
    ]
    document = read("a.pdf", pdf_bytes([first, [], [(72, 700, body, "The third page.")]], title="All  rivers"))
    floods = ("Rivers", "Floods in spring")
    assert document.title == "All rivers"
    assert shape(document) == [
        (1, 1, 1, "heading", ("Rivers",), "Rivers"),
        (1, 2, 2, "heading", floods, "Floods in spring"),
        (1, 3, 4, "prose", floods, "They rise when the snow\nmelts in the hills."),
        (1, 5, 5, "prose", floods, "Another paragraph."),
        (3, 1, 1, "prose", floods, "The third page."),
    ]


def test_pdf_dot_leaders_are_cut_short(read: Read) -> None:
    document = read(
        "a.pdf", pdf_bytes([[(72, 720, 11, "Introduction . . . . . . . . . . . . . 5"), (72, 700, 11, "Two....... 7")]])
    )
    assert document.blocks[0].text == "Introduction … 5\nTwo … 7"


def test_pdf_damage_is_said(read: Read) -> None:
    whole = pdf_bytes([[(72, 720, 11, "One page.")], [(72, 720, 11, "Another page.")]])
    with pytest.raises(InputError, match="damaged PDF"):
        read("a.pdf", whole[:60])
    # The second page's own object is gone: the rest is read, and the loss is told.
    broken = whole.replace(b"/Type /Page /Parent", b"/Type /Pagx /Parent", 2).replace(b"/Pagx", b"/Page", 1)
    document = read("a.pdf", broken)
    assert document.blocks[0].text == "One page."


# DOCX


def test_docx(read: Read, samples: dict[str, bytes]) -> None:
    document = read("a.docx", samples["letter.docx"])
    assert document.title == "Rivers of the north"
    floods, measured = ("Floods",), ("Floods", "Measurements")
    assert shape(document) == [
        (None, 1, 1, "heading", floods, "Floods"),
        (None, 2, 2, "paragraph", floods, "The river rises in April. Snow melts in the hills."),
        (None, 3, 3, "heading", measured, "Measurements"),
        (None, 4, 5, "table", measured, "Year | Level\n1997 | 8.2 m"),
        (None, 6, 6, "heading", ("Droughts",), "Droughts"),
        (None, 7, 7, "paragraph", ("Droughts",), "In August little is left of it."),
    ]


def test_docx_keeps_what_lies_in_controls_and_boxes_and_drops_what_is_deleted(read: Read) -> None:
    def run(text: str) -> str:
        return f"<w:r><w:t>{text}</w:t></w:r>"

    body = (
        f"<w:sdt><w:sdtContent><w:p>{run('In a control.')}</w:p></w:sdtContent></w:sdt>"
        f"<w:p>{run('Kept, ')}<w:del>{run('deleted ')}</w:del><w:ins>{run('inserted.')}</w:ins>"
        f"<w:hyperlink>{run(' A link.')}</w:hyperlink><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
        f"<w:p>{run('Around')}<w:r><mc:AlternateContent><mc:Choice><w:txbxContent><w:p>{run('In a box.')}</w:p>"
        f"</w:txbxContent></mc:Choice><mc:Fallback><w:txbxContent><w:p>{run('In a box.')}</w:p></w:txbxContent>"
        "</mc:Fallback></mc:AlternateContent></w:r><w:r><w:br/><w:t>two lines.</w:t><w:tab/></w:r></w:p>"
        f"<w:tbl><w:tr><w:tc><w:p>{run('outer')}</w:p><w:tbl><w:tr><w:tc><w:p>{run('inner')}</w:p></w:tc></w:tr></w:tbl>"
        f"</w:tc><w:tc><w:p>{run('right')}</w:p></w:tc></w:tr></w:tbl>"
        '<w:p><w:pPr><w:outlineLvl w:val="1"/></w:pPr>' + run("By outline level") + "</w:p>"
    )
    document = read("a.docx", docx_of(body))
    assert [(b.line_start, b.kind, b.text) for b in document.blocks] == [
        (1, "paragraph", "In a control."),
        (2, "paragraph", "Kept, inserted. A link."),
        (3, "paragraph", "Around\ntwo lines."),
        (4, "paragraph", "In a box."),
        (5, "table", "outer | right\ninner"),
        (7, "heading", "By outline level"),
    ]


# PPTX


def test_pptx(read: Read, samples: dict[str, bytes]) -> None:
    document = read("a.pptx", samples["talk.pptx"])
    why, levels = ("Why rivers flood",), ("Levels",)
    assert document.title == "Why rivers flood"
    assert shape(document) == [
        (1, 1, 1, "heading", why, "Why rivers flood"),
        (1, 2, 2, "item", why, "Melting snow"),
        (1, 3, 3, "item", why, "Heavy rain"),
        (1, 4, 4, "paragraph", (*why, "Notes"), "Show the picture of 1997 here."),
        (2, 1, 1, "heading", levels, "Levels"),
        (2, 2, 2, "paragraph", levels, "Year | Level"),
        (2, 3, 3, "paragraph", levels, "1997 | 8.2 m"),
    ]


def test_a_missing_slide_costs_only_itself(read: Read, samples: dict[str, bytes]) -> None:
    second = rewritten(samples["talk.pptx"], "ppt/slides/slide2.xml", lambda _: None)
    document = read("a.pptx", second)
    assert document.warning == "slides that are missing: 2"
    assert {block.page for block in document.blocks} == {1}
    with pytest.raises(InputError, match="slide 1 is missing"):
        read("a.pptx", rewritten(second, "ppt/slides/slide1.xml", lambda _: None))


# EPUB


def test_epub_that_names_a_file_outside_is_damaged(read: Read) -> None:
    package = (
        '<package><manifest><item id="c" href="../../../etc/passwd" media-type="text/html"/></manifest>'
        '<spine><itemref idref="c"/></spine></package>'
    )
    with pytest.raises(InputError, match="is missing"):
        read("a.epub", epub_bytes([], package=package))


# Containers


@pytest.mark.parametrize("name", ["letter.docx", "talk.pptx", "novel.epub"])
def test_containers_are_told_by_their_content_too(read: Read, samples: dict[str, bytes], name: str) -> None:
    assert read("no suffix", samples[name]).blocks


def test_what_unpacks_to_too_much_is_refused(
    read: Read, samples: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part, all parts together, or too many of them."""
    bomb = b'<?xml version="1.0"?><w:document xmlns:w="w">' + b" " * 3_000_000
    chapter = CHAPTER.format("One", "x" + " " * 500_000)
    for limit, most, name, data, said in (
        ("MAX_PART_BYTES", 2_000_000, "a.docx", rewritten(samples["letter.docx"], "word/document.xml", lambda _: bomb),
         "unpack"),
        ("MAX_PARTS_BYTES", 2_000_000, "a.epub", epub_bytes([chapter] * 4), "unpack"),
        ("MAX_MEMBERS", 3, "a.epub", epub_bytes(["<p>one</p>", "<p>two</p>"]), "5 members"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(archive, limit, most)
            with pytest.raises(InputError, match=said):
                read(name, data)
            if limit == "MAX_PARTS_BYTES":
                assert read(name, epub_bytes([chapter] * 3)).blocks


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE d [<!ENTITY % a SYSTEM "http://127.0.0.1:9/x.dtd"> %a;]>',
    ],
)
def test_entities_are_refused(read: Read, samples: dict[str, bytes], doctype: str) -> None:
    document = (
        f'<?xml version="1.0"?>{doctype}<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        "<w:body><w:p><w:r><w:t>Text &b;&a;</w:t></w:r></w:p></w:body></w:document>"
    ).encode()
    with pytest.raises(InputError, match=r"entities|is not XML"):
        read("a.docx", rewritten(samples["letter.docx"], "word/document.xml", lambda _: document))


def test_what_is_locked_or_without_text_is_skipped(read: Read, samples: dict[str, bytes]) -> None:
    chapters = [CHAPTER.format("One", "First.")]
    container = bytearray(samples["letter.docx"])
    at = container.find(b"PK\x01\x02")
    while at >= 0:
        container[at + 8] |= 1
        at = container.find(b"PK\x01\x02", at + 1)
    for name, data, reason in (
        ("a.pdf", pdf_bytes([[(72, 720, 11, "secret")]], encrypted=True), Reason.ENCRYPTED),
        ("a.docx", bytes(container), Reason.ENCRYPTED),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), Reason.UNSUPPORTED),
        ("a.epub", epub_bytes(chapters, encrypted=["OEBPS/text/chapter%201.xhtml"]), Reason.ENCRYPTED),
        ("a.pdf", pdf_bytes([[], []]), Reason.NO_TEXT),
        ("a.docx", docx_of("<w:p/>"), Reason.NO_TEXT),
    ):
        with pytest.raises(Skipped) as skipped:
            read(name, data)
        assert skipped.value.reason is reason, name
    assert read("a.epub", epub_bytes(chapters, encrypted=["OEBPS/font.otf"])).blocks
