"""What the page says where something is missing, refused, broken off, or named to deceive; in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.apps.serve.conftest import Opened, Running, stream

VIEWS = ("search", "ask", "memory", "collections", "engine")
DECEIVING = "/notes/gpj.\u202eexe\n.txt"
SHOWN = "gpj.\\u202eexe\\n.txt"


def used(opened: Opened, view: str) -> Page:
    """A view whose requests are sent."""
    page = opened.go(view)
    if view in ("search", "ask"):
        field = page.locator({"search": "#query", "ask": "#question"}[view])
        field.fill("river")
        field.press("Enter")
    return page


def streamed(*events: tuple[str, Any]) -> dict[str, str]:
    """An answer of server-sent events, as Playwright takes it."""
    return {"content_type": "text/event-stream; charset=utf-8", "body": stream(*events)}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("status", [413, 429])
def test_a_refusal_is_said_in_the_server_s_words(browser: Any, site: Running, view: str, status: int) -> None:
    tab = Opened(browser, site.url)
    tab.go("search")
    detail = "the request needs 20 MB but 3 MB are free; a limit of 317 MB is the smallest that works"
    tab.page.route("**/v1/**", lambda route: route.fulfill(status=status, json={"detail": detail, "status": status}))
    page = used(tab, view)
    expect(page.locator(f"#view-{view}").get_by_role("alert").first).to_have_text(detail)
    tab.context.close()


@pytest.mark.parametrize("view", VIEWS)
def test_a_server_that_does_not_answer_is_said_in_every_view(browser: Any, site: Running, view: str) -> None:
    tab = Opened(browser, site.url)
    tab.go("search")
    tab.page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    page = used(tab, view)
    said = page.locator(f"#view-{view}").get_by_role("alert").first
    expect(said).to_have_text("The server does not answer. Is edge serve still running?")
    tab.page.unroute_all()
    if view == "engine":
        expect(said).to_be_hidden()  # it asks again by itself
    tab.context.close()


@pytest.mark.parametrize("view", ["search", "ask"])
def test_an_answer_that_breaks_off_is_said(opened: Opened, view: str) -> None:
    """What came before it stays: the results by words and vectors."""
    hit = {"path": "/notes/river.md", "id": 1, "line_start": 1, "line_end": 1, "text": "The river."}
    begun = streamed(("fused", {"results": [hit]})) if view == "search" else streamed(("text", {"text": "The riv"}))
    opened.page.route(f"**/v1/{view}", lambda route: route.fulfill(**begun))
    page = used(opened, view)
    expect(page.get_by_role("alert")).to_have_text("The answer broke off. Is edge serve still running?")
    if view == "search":
        expect(page.locator(".hit .name")).to_have_text("river.md")
        expect(page.locator("#search-state")).to_be_empty()
    else:
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_a_name_that_deceives_is_shown_with_escapes(opened: Opened) -> None:
    """Of all places that show a name, one test: results, document, citations, and the lists of a collection."""
    hit = {"path": DECEIVING, "id": 1, "line_start": 1, "line_end": 1, "text": "The river.", "title": "a\u202eb"}
    found = {
        **hit, "kind": "text", "size": 5, "lines": [[1, "The river."]], "pages": [], "blocks": None, "earlier": None,
        "later": None, "title": "",
    }  # fmt: skip
    cited = {**hit, "number": 1, "snippet": "The river.", "line": 1}
    stats = {"pipeline": "plain", "seconds": 1, "search_s": 1, "rerank_s": 0, "generate_s": 0}
    answer = {
        "text": "The river. [1]", "citations": [cited], "stats": stats, "found": True, "unsupported": [],
        "rounds": [{"queries": ["q"], "passages": [{**cited, "relevance": 0.5}], "below": 0}],
    }  # fmt: skip
    page = opened.page
    page.route("**/v1/search", lambda route: route.fulfill(**streamed(("final", {"results": [hit]}))))
    page.route("**/v1/preview", lambda route: route.fulfill(json=found))
    page.route("**/v1/ask", lambda route: route.fulfill(**streamed(("answer", answer))))
    page.route("**/v1/collections/*/files", lambda route: route.fulfill(json={"files": [{**found, "chunks": 1}]}))
    used(opened, "search")
    expect(page.locator(".hit .name")).to_have_text(SHOWN)
    expect(page.locator(".hit .titled")).to_have_text("a\\u202eb")
    page.locator(".hit .open").click()
    expect(page.locator("#document h2")).to_have_text(SHOWN)
    expect(page.locator("#document .path")).to_have_text(f"/notes/{SHOWN}")
    used(opened, "ask")
    expect(page.locator(".sources .open")).to_have_text(f"{SHOWN}, line 1")
    page.locator(".how summary").click()
    expect(page.locator(".rounds ul li")).to_have_text(f"{SHOWN}, line 1, relevance 0.50")
    opened.go("collections").locator("summary", has_text="documents").first.click()
    expect(page.locator(".files .open").first).to_have_text(SHOWN)
    assert "\u202e" not in page.locator("body").inner_text()


def test_where_nothing_is_indexed_the_page_says_how(
    browser: Any, start_server: Callable[..., Running], tmp_path: Path
) -> None:
    arguments = ("--port", "0", "-c", str(tmp_path / "none"), "--memory-path", str(tmp_path / "memory"))
    server = start_server(*arguments, runtime=tmp_path / "run", usual=False)
    tab = Opened(browser, server.url)
    for view in ("search", "ask"):
        expect(used(tab, view).locator("#no-collection")).to_contain_text("edge index FOLDER")
        expect(tab.page.get_by_role("alert")).to_contain_text("there is no collection in")
    with server.client() as client:
        answer = client.post("/v1/search", json={"query": "river"})
    assert answer.status_code == 404  # a condition of the request, and not a fault of the server
    tab.context.close()
    server.stop()
