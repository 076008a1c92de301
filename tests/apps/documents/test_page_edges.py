"""Web pages: what stands around their text, what they say only to programs, and the bookmarks of browsers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.apps.documents.base import DocumentBlocks

Read = Callable[[str, str], DocumentBlocks]

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
