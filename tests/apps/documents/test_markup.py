"""XML that people read: feeds, papers, FictionBook and OpenDocument in one file, in many lines or in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge.apps.documents.base import DocumentBlocks, Reason, Skipped

Read = Callable[[str, "str | bytes"], DocumentBlocks]


def shape(document: DocumentBlocks) -> list[tuple[Any, ...]]:
    return [(block.kind, block.path, block.text) for block in document.blocks]


RSS = """<?xml version="1.0"?>
<rss version="2.0"><channel><title>News</title><link/>
<item><title>Snow &amp; ice</title>
<description>The walrus rests
on the ice.</description><guid>a-1</guid></item>
<item><title>Rain</title><description><![CDATA[<p>It rains.</p><ul><li>all day</li></ul>]]></description></item>
</channel></rss>
"""
READ = [
    ("heading", ("News",), "News"), ("heading", ("News", "Snow & ice"), "Snow & ice"),
    ("paragraph", ("News", "Snow & ice"), "The walrus rests on the ice."), ("heading", ("News", "Rain"), "Rain"),
    ("paragraph", ("News", "Rain"), "It rains."), ("item", ("News", "Rain"), "all day"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["feed.xml", "feed.rss", "feed"])
def test_a_feed(read: Read, name: str) -> None:
    document = read(name, RSS)
    assert document.title == "News"
    assert shape(document) == READ
    assert [(block.line_start, block.line_end) for block in document.blocks] == [
        (2, 2), (3, 3), (4, 5), (6, 6), (6, 6), (6, 6),
    ]  # fmt: skip
    assert shape(read(name, RSS.replace("rests\n", "rests ").replace("\n", ""))) == READ


def test_a_paper_in_one_line(read: Read) -> None:
    words = "The <italic>wal</italic>rus rests on ice [<xref>1</xref>]. " * 60
    paper = (
        "<record><front><article-title>Walrus study</article-title></front>"
        f"<sec><title>Methods</title><p>{words}</p></sec>"
        "<sec><title>Results</title><p>None.</p></sec></record>"
    )
    document = read("paper.xml", paper)
    assert document.title == "Walrus study"
    assert shape(document)[1] == ("heading", ("Methods",), "Methods")
    assert shape(document)[2][2] == ("The walrus rests on ice [1]. " * 60).strip()
    assert shape(document)[3:] == [("heading", ("Results",), "Results"), ("paragraph", ("Results",), "None.")]


def test_settings_in_xml_stay_code_and_damaged_xml_is_said(read: Read) -> None:
    settings = "<project>\n  <name>x</name>\n</project>\n"
    assert [block.kind for block in read("pom.xml", settings).blocks] == ["code"]
    with pytest.raises(Skipped, match="minified or generated code"):
        read("a.xml", f"<a>{'<b>words</b>' * 900}")
    with pytest.raises(Skipped) as nothing:
        read("a.xml", "<a>" + "<b k='v'/>" * 900 + "</a>")
    assert nothing.value.reason is Reason.NO_TEXT


BOOK = (
    '<?xml version="1.0" encoding="windows-1251"?>\n'
    '<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0"><description><title-info>'
    "<book-title>Морж</book-title></title-info></description><body><section><title><p>Глава</p><p>первая</p></title>"
    "<p>Был холодный <emphasis>морж</emphasis>овый день.</p></section></body><binary id='a'>iVBORw0KGgo=</binary>"
    "</FictionBook>"
)


def test_a_fictionbook_in_its_encoding(read: Read) -> None:
    document = read("a.fb2", BOOK.encode("cp1251"))
    assert document.title == "Морж"
    assert shape(document)[1:] == [
        ("heading", ("Глава первая",), "Глава первая"),
        ("paragraph", ("Глава первая",), "Был холодный моржовый день."),
    ]


OFFICE = (
    '<?xml version="1.0"?><office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:dc="http://purl.org/dc/elements/1.1/" '
    'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" office:mimetype="application/{0}"><office:meta>'
    "<dc:title>Flat</dc:title></office:meta><office:body>{1}</office:body></office:document>"
)


def test_flat_opendocument_files(read: Read) -> None:
    words = "<text:p>A <text:span>wal</text:span>rus.</text:p>"
    body = f"<office:text><text:h>One</text:h>{words}</office:text>"
    document = read("a.fodt", OFFICE.format("vnd.oasis.opendocument.text", body))
    assert document.title == "Flat"
    assert shape(document) == [("heading", ("One",), "One"), ("paragraph", ("One",), "A walrus.")]
    cells = "".join(
        "<table:table-row>"
        + "".join(f"<table:table-cell><text:p>{value}</text:p></table:table-cell>" for value in row)
        + "</table:table-row>"
        for row in (("Town", "Trout"), ("Oslo", "1"))
    )
    sheet = f'<office:spreadsheet><table:table table:name="S">{cells}</table:table></office:spreadsheet>'
    for name in ("a.fods", "a.xml"):
        assert shape(read(name, OFFICE.format("vnd.oasis.opendocument.spreadsheet", sheet))) == [
            ("columns", ("S",), "Town | Trout"), ("row", ("S",), "Town: Oslo\nTrout: 1"),
        ]  # fmt: skip
