"""Web pages: their blocks and lines, what stands around their text, and what they say only to programs; and XML that
people read: feeds, papers, FictionBook and OpenDocument in one file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import DocumentBlocks, Reason, Skipped
from edge.apps.documents.html import html_blocks
from edge.errors import InputError
from tests.apps.documents.conftest import Read

OPENING = (
    "<p>", "<div>", "<b>", "<h2>", "<li>", "<td>", "<tr>", "<table>", "<br>", "</p>", "</div>", "</b>", "</table>",
)  # fmt: skip
OTHERS = (
    "<a\nhref='x'\n>", "<!-- w0 \n -->", "<script>\nvar w0 = '<p>';\n</script>", "<style>\nw0 {}\n</style>",
    "\n", "\n\n", " ", "&amp;", "&nbsp;", "<pre>\n", "</pre>", "<nav>\nmenu</nav>",
    "<img alt='picture'>", "<", "<?x\n?>",
    "<select>\n<option>w0</select>", "<ul>", "</ul>", "<p hidden>\nw0</p>", "<svg><text>w0\n</text></svg>",
)  # fmt: skip


def test_a_page(read: Read, samples: dict[str, bytes]) -> None:
    document = read("page.html", samples["page.html"])
    assert document.title == "Rivers & floods"
    assert [(b.kind, b.line_start, b.line_end, b.path, b.text) for b in document.blocks] == [
        ("heading", 6, 6, ("Rivers",), "Rivers"),
        ("paragraph", 7, 9, ("Rivers",), "They rise\nin spring, when the\nsnow melts."),
        ("heading", 11, 11, ("Rivers", "Levels"), "Levels"),
        ("paragraph", 12, 12, ("Rivers", "Levels"), "Year | Level"),
        ("paragraph", 13, 13, ("Rivers", "Levels"), "1997 | 8.2 m"),
        ("code", 15, 16, ("Rivers", "Levels"), "first\n  second"),
        ("item", 18, 18, ("Rivers", "Levels"), "one"),
        ("item", 18, 18, ("Rivers", "Levels"), "two"),
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        '<div style="display:none">X</div>', '<p style="color: red; DISPLAY : none !important">X</p>',
        '<span style="visibility: hidden">X <b>X</b></span>', "<div hidden>X</div>", "<p hidden=until-found>X</p>",
        "<template>X</template>",
    ],
)  # fmt: skip
def test_text_that_no_reader_sees_is_left_out(read: Read, hidden: str) -> None:
    document = read("a.html", f"<html><body><p>Before</p>{hidden}<p>Behind</p></body></html>")
    assert [block.text for block in document.blocks] == ["Before", "Behind"]
    assert read("a.html", "<p style='display:block'>Shown").blocks


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from(OPENING), st.sampled_from(OTHERS), st.just("WORD")), max_size=40), st.booleans()
)
def test_every_word_stands_on_its_line(parts: list[str], whole: bool) -> None:
    """Words are numbered, so that each can be looked up in the source."""
    parts = [f" w{n} " if part == "WORD" else part for n, part in enumerate(parts, 1)]
    source = "".join(parts)
    if whole:
        source = f"<!DOCTYPE html>\n<html><head>\n<title>t\nu</title>\n</head>\n<body>\n{source}\n</body></html>"
    line_of = {}
    for number, line in enumerate(source.split("\n"), 1):
        for word in line.replace("<", " ").split():
            line_of[word] = number
    _, blocks = html_blocks(source)
    seen = []
    for block in blocks:
        assert block.lines is not None
        for text, number in zip(block.text.split("\n"), block.lines, strict=True):
            assert block.line_start <= number <= block.line_end
            for word in text.split():
                if word.startswith("w"):
                    seen.append(word)
                    assert line_of[word] == number
    assert len(set(seen)) == len(seen)
    assert "w0" not in seen


def test_lines_beyond_what_the_parser_counts() -> None:
    source = "<body>\n" + "<p>line\n" * 70_000 + "<p>last"
    _, blocks = html_blocks(source)
    assert (blocks[0].line_start, blocks[-1].line_start) == (2, 70_002)
    assert all(block.line_start == number for number, block in enumerate(blocks, 2))


def test_xhtml_that_closes_empty_elements_its_own_way() -> None:
    source = (
        '<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><head><title/><script src="x"/></head>\n'
        '<body><a id="here"/><p>One.</p><div class="line"/>\n<p>Two<br/>three.</p></body></html>'
    )
    assert [(b.text, b.line_start) for b in html_blocks(source)[1]] == [("One.", 3), ("Two\nthree.", 4)]


@pytest.mark.parametrize(
    ("head", "codec", "text"),
    [
        ('<meta charset="windows-1251">', "cp1251", "Река"),
        ('<meta http-equiv=x content="text/html; charset=koi8-r">', "koi8_r", "Река"),
        ('<meta http-equiv=x content="text/html; charset=x-sjis">', "cp932", "図書館は①金曜日に開く㈱"),
        ('<?xml version="1.0" encoding="x-sjis"?>', "cp932", "図書館は①金曜日に開く㈱"),
    ],
)
def test_the_encoding_that_the_page_names(read: Read, head: str, codec: str, text: str) -> None:
    document = read("a.html", f"{head}<html><body>{text}</body></html>".encode(codec))
    assert [block.text for block in document.blocks] == [text]


def test_deep_trees_are_read_and_those_that_are_too_deep_refused() -> None:
    for depth in (300, 2_000):
        _, blocks = html_blocks("<div>" * depth + "deep" + "</div>" * depth)
        assert [block.text for block in blocks] == ["deep"]
    with pytest.raises(InputError, match="nested deeper"):
        html_blocks("<div>" * 5_000 + "deep")


def test_entities_are_not_multiplied(read: Read) -> None:
    source = (
        '<!DOCTYPE html [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><html><body>x &b; y &lt;</body></html>'
    )
    assert "aaaaaaaaaaaaaaaaaaaa" not in " ".join(block.text for block in read("a.html", source).blocks)


_TEXT = "<h1>Ice</h1><p>Old ice is strong enough to carry a horse.</p>"
_DATA = '{"@type": "Event", "name": "Regatta &amp; fair", "startDate": "2026-06-01", "offers": [{"price": 12}]}'
_META = f"<meta name=description content='All about boats and oars'><script type='application/ld+json'>{_DATA}</script>"
_META_READ = ["All about boats and oars", "name: Regatta & fair\nstartDate: 2026-06-01\nprice: 12"]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (f"<table><tr><td><a>Prev</a><td><a>Up</a><td><a>Next</a></table>{_TEXT}<ul><li><a>Imprint</a></ul>", None),
        (f"<p><a><img alt='Product Site'></a></p>{_TEXT}<footer><p>Copyright Site</p></footer>", None),
        (f"<nav><p>Menu</p></nav>{_TEXT}<div role=contentinfo>Site</div>", None),
        (f"{_TEXT}<ul><li><a>Boats</a></ul><p>Young ice is weak.</p>", ["Boats", "Young ice is weak."]),
        (f"{_TEXT}<article><blockquote>Snow<footer>Ann</footer></blockquote></article>", ["Snow", "Ann"]),
        (f"{_TEXT}<p><a>https://meet.example/abc</a></p>", ["https://meet.example/abc"]),
        ("<h1>Links</h1><ul><li><a>Boats</a><li><a>Oars</a></ul>", ["Links", "Boats", "Oars"]),
        ("<footer><p>Only this</p></footer>", ["Only this"]),
        ("<body><nav><p>All stands in what is never closed.", ["All stands in what is never closed."]),
        ("<body><div role=navigation>menu</div><header role=banner>site</header><nav>nav</nav><noscript>enable"
         "</noscript><template>t</template><form><select><option>o</select><button>b</button></form>"
         "<main>Text.</main>", ["Text."]),
        ("<html><body><p>It is<math alttext='x'><semantics><mrow><mi>energy</mi><mo>=</mo><msup><mi>mc</mi><mn>2</mn>"
         "</msup></mrow><annotation encoding='application/x-tex'>E=mc^2</annotation></semantics></math>for all.</p>",
         ["It is energy = mc 2 for all."]),
        (f"{_META}<div id=root></div>", _META_READ),
        (f"{_META}<p>Loading...</p>", ["Loading...", *_META_READ]),
        (f"<head>{_META}</head>{_TEXT * 3}", None),
        ("<script type='application/ld+json'>{broken</script><p>Text</p>", ["Text"]),
        ("<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<TITLE>Bookmarks</TITLE>\n<H1>Bookmarks</H1>\n<DL><p>"
         "<DT><H3>Sailing</H3>\n<DL><p><DT><A HREF='https://example.org/knots'>Bowline</A></DL></DL>",
         ["Bookmarks", "Sailing", "Bowline (https://example.org/knots)"]),
    ],
)  # fmt: skip
def test_the_text_of_a_page_is_read(read: Read, page: str, expected: list[str] | None) -> None:
    texts = [block.text for block in read("a.html", page).blocks]
    own = ["Ice", "Old ice is strong enough to carry a horse."]
    if expected is None:
        assert texts == own * (len(texts) // 2)
    else:
        assert texts == [*own, *expected] if page.startswith(_TEXT) else texts == expected


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
