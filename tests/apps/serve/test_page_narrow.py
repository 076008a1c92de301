"""The page on a narrow screen, in a real browser: nothing is cut off, and an open document shows its passage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.apps.serve.conftest import SETTLED, Opened, Running, stream

WIDTH, HEIGHT = 340, 640

BROKEN_WORDS = """() => {
  const found = [];
  for (const cell of document.querySelectorAll("#engine th, #engine td")) {
    for (const word of cell.textContent.split(/[\\s-]+/)) {
      const node = [...cell.childNodes].find((child) => child.nodeType === 3 && child.data.includes(word));
      if (!word || !node) continue;
      const range = document.createRange();
      range.setStart(node, node.data.indexOf(word));
      range.setEnd(node, node.data.indexOf(word) + word.length);
      if (range.getClientRects().length > 1) found.push(word);
    }
  }
  return found;
}"""
"""Words of the engine room's tables that take more than one line."""


@pytest.fixture
def narrow(browser: Any, site: Running) -> Iterator[Opened]:
    tab = Opened(browser, site.url, viewport={"width": WIDTH, "height": HEIGHT})
    yield tab
    tab.context.close()
    assert not tab.complaints


def within(page: Page, selector: str) -> bool:
    """Whether an element lies within the window as a whole."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= WIDTH and box["y"] + box["height"] <= HEIGHT


def test_every_view_can_be_chosen(narrow: Opened) -> None:
    page = narrow.go("search")
    for view in ("search", "ask", "memory", "collections", "engine"):
        assert within(page, f'#tabs a[href="#{view}"]')


def test_a_document_opens_at_its_passage_below_its_buttons(narrow: Opened) -> None:
    """The text before the passage is longer than the window."""
    lines = [[number, f"Line {number} of the text."] for number in range(1, 200)]
    hit = {"path": "/notes/long.txt", "id": 1, "collection": "", "line_start": 150, "line_end": 151, "line": 150}
    told = {"path": "/notes/long.txt", "kind": "text", "size": 5000, "modified": None, "title": "", "blocks": None}
    page = narrow.go("search?q=river")
    expect(page.locator("#search-state")).to_have_text(SETTLED)
    page.route(
        "**/v1/preview",
        lambda route: route.fulfill(json={**told, "lines": lines, "pages": [], "earlier": None, "later": None}),
    )
    page.route(
        "**/v1/search",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=stream(("final", {"results": [{**hit, "text": "Line 150"}]}))
        ),
    )
    page.locator("#query").fill("line")
    page.locator(".hit .open", has_text="long.txt").click()
    expect(page.locator("#document h2")).to_be_focused()
    expect(page.locator("#document .best")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Close", exact=True)).to_be_in_viewport()
    expect(page.get_by_role("main")).to_be_visible()  # where the link to the content leads
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(".hit .open").first).to_be_focused()


def test_tables_break_no_word(narrow: Opened) -> None:
    page = narrow.go("engine")
    page.locator(".track").first.wait_for()
    assert page.evaluate(BROKEN_WORDS) == []
