"""The page in a real browser: open documents, hostile texts, narrow screens, and what it says of what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.apps.serve.conftest import HOSTILE, RENDERED, SETTLED, Opened, Running, stream


def test_a_document_opens_at_its_passage(opened: Opened) -> None:
    page = opened.go("search?q=melts")
    page.locator(".hit", has_text="river.md").locator(".open").click()
    document = page.locator("#document")
    expect(document.locator("h2")).to_have_text("The river")
    expect(document.locator("p.best")).to_contain_text("floods every spring")
    document.get_by_role("button", name="Lines").click()
    best = document.locator(".line.passage", has_text="floods every spring")
    expect(best.locator(".number")).to_have_text("3")
    expect(document.locator(".line").nth(0)).to_contain_text("# The river")
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.keyboard.press("c")
    expect(page.locator("#announcement")).to_have_text(re.compile(r"Copied .*river\.md:\d+$"))
    document.get_by_role("button", name="Close").click()
    expect(document).to_be_hidden()


@pytest.mark.parametrize("name", RENDERED)
def test_a_document_is_shown_as_it_is_read(tab: Callable[..., Opened], papers: Running, name: str) -> None:
    page = tab(papers.url).go("search?q=lasagne+cooking+times")
    page.locator(".hit", has_text=name).locator(".open").first.click()
    prose = page.locator("#document .prose")
    prose.wait_for()
    html = prose.evaluate("prose => prose.innerHTML")
    assert re.sub(r' class="(?:passage|best| )+"', "", html) == RENDERED[name]


def test_a_pdf_opens_as_text_and_as_pages_with_the_passage_marked(tab: Callable[..., Opened], papers: Running) -> None:
    page = tab(papers.url).go("search?q=snow")
    file = page.locator(".hit", has_text="rivers.pdf")  # of which the other page is the best place
    file.get_by_role("button", name="page 1", exact=True).click()
    document = page.locator("#document")
    expect(document.locator(".prose")).to_contain_text("when the snow melts.")
    document.get_by_role("button", name="Page", exact=True).click()
    sheet = document.locator("canvas.sheet")
    expect(sheet).to_have_attribute("aria-label", re.compile(r"Page 1 of 2\. Marked: .*when the snow melts\."))
    assert sheet.evaluate("sheet => sheet.width") > 900
    yellow = """sheet => {
      const { data } = sheet.getContext("2d").getImageData(0, 0, sheet.width, sheet.height);
      for (let at = 0; at < data.length; at += 4) if (data[at] > 230 && data[at + 2] < 160) return true;
      return false;
    }"""
    assert sheet.evaluate(yellow)
    expect(document.get_by_role("button", name="Previous page")).to_be_disabled()
    document.get_by_role("button", name="Next page").click()
    expect(sheet).to_have_attribute("aria-label", "Page 2 of 2")
    assert not sheet.evaluate(yellow)
    expect(document.get_by_role("button", name="Next page")).to_be_disabled()
    document.get_by_role("button", name="Text", exact=True).click()
    expect(document.locator(".prose")).to_contain_text("when the snow melts.")


def test_a_key_opens_the_document_in_the_editor(opened: Opened) -> None:
    opened.page.route("**/v1/offers", lambda route: route.fulfill(json={**route.fetch().json(), "editor": True}))
    opened.page.route("**/v1/open", lambda route: route.fulfill(json={"opened": ""}))
    page = opened.go("search?q=river")
    expect(page.locator("#search-state")).to_have_text(SETTLED)
    page.locator(".hit", has_text="river.md").locator(".open").click()
    expect(page.get_by_role("button", name="Open in editor")).to_be_visible()
    with page.expect_request("**/v1/open") as asked:
        page.locator("#document h2").press("e")
    body = asked.value.post_data_json
    assert (Path(body["path"]).name, body["line"] > 0) == ("river.md", True)
    expect(page.locator("#announcement")).to_have_text("Opened in the editor")


RUN = "() => typeof window.pwned"


def check(page: Page) -> None:
    assert page.evaluate(RUN) == "undefined"
    foreign = "img, iframe, main script, #document script, object, embed, [onclick], [onerror], [onload]"
    assert page.locator(foreign).count() == 0
    assert page.locator("a[href^='javascript' i]").count() == 0


@pytest.fixture
def page(opened: Opened, site: Running) -> Page:
    found: Page = opened.go("search")
    found.locator("#search-collection").select_option(label="hostile-collection")
    found.locator("#query").fill("quarry")
    expect(found.locator(".hit")).to_have_count(len(HOSTILE))
    expect(found.locator("#search-state")).to_contain_text("results in")
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_stays_text(page: Page, name: str) -> None:
    row = page.locator(".hit").filter(has=page.locator(".name", has_text=name))
    row.locator(".open").click()
    document = page.locator("#document")
    expect(document.locator(".path")).to_contain_text(name)
    expect(document).to_contain_text("pwned=1" if name != "quarry.html" else "<script>pwned=1</script>")
    check(page)


def test_hostile_memories_scopes_and_addresses_stay_text(opened: Opened, site: Running) -> None:
    bad = "<img src=x onerror=pwned=1>"
    with site.client() as client:
        for user in (bad, "grace"):
            body = {"messages": f"{user} is remembered.", "user_id": user, "metadata": {bad: bad}}
            client.post("/memories", json=body).raise_for_status()
    page = opened.go("memory")
    for user in ("grace", bad):
        page.locator("#scope").select_option(label=f"user {user} (1)")
        expect(page.locator("#memories .memory")).to_have_text([f"{user} is remembered."])
    card = page.locator("#memories .card", has_text=f"{bad} is remembered.")
    card.get_by_role("button", name="History").click()
    expect(card.locator(".history")).to_contain_text(bad)
    check(page)
    page = opened.go(f"search?q={'%3Cimg%20src%3Dx%20onerror%3Dpwned%3D1%3E'}")
    expect(page.locator("#query")).to_have_value(bad)
    check(page)
    page = opened.go("collections")
    page.locator("summary", has_text="4 documents").click()
    expect(page.locator(".files")).to_contain_text([bad])
    check(page)


def test_the_policy_stops_a_script_that_got_in_all_the_same(opened: Opened) -> None:
    page = opened.go("search")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.setAttribute("src", "data:text/javascript,window.pwned=1"); } catch {}
            try { script.textContent = "window.pwned = 1"; } catch {}
            document.body.append(script);
            try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); } catch { window.refused = true; }
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate(RUN) == "undefined"
    assert page.evaluate("() => window.refused") is True
    assert opened.complaints
    opened.complaints.clear()


WIDTH = 340

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


VIEWS = ("search", "ask", "memory", "collections", "engine")


@pytest.fixture
def narrow(tab: Callable[..., Opened], site: Running) -> Opened:
    return tab(site.url, viewport={"width": WIDTH, "height": 640})


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_screen_shows_every_tab_whole_words_and_no_sideways_scrolling(narrow: Opened, view: str) -> None:
    page = narrow.go("search?q=river" if view == "search" else view)
    if view == "engine":
        page.locator(".track").first.wait_for()
    if view == "search":
        expect(page.locator("#search-state")).to_have_text(SETTLED)
    for tab in VIEWS:
        expect(page.locator(f'#tabs a[href="#{tab}"]')).to_be_in_viewport(ratio=1)
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.evaluate("() => document.scrollingElement.scrollWidth") <= WIDTH
    if view == "search":
        page.locator(".hit .open").first.click()
        expect(page.locator("#document h2")).to_be_visible()
        expect(page.locator("#hits")).to_be_hidden()
        assert page.evaluate("() => document.scrollingElement.scrollWidth") <= WIDTH


def test_a_document_opens_at_its_passage_below_its_buttons(narrow: Opened) -> None:
    """The text before the passage is longer than the window."""
    lines = [[number, f"Line {number} of the text."] for number in range(1, 200)]
    hit = {"path": "/notes/long.txt", "id": 1, "collection": "", "line_start": 150, "line_end": 151, "line": 150}
    told = {"path": "/notes/long.txt", "kind": "text", "size": 5000, "modified": None, "title": ""}
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


REFUSAL = "the request needs 20 MB but 3 MB are free; a limit of 317 MB is the smallest that works"
TROUBLES: dict[str, Callable[[Any], None]] = {
    REFUSAL: lambda route: route.fulfill(status=429, json={"detail": REFUSAL, "status": 429}),
    "The server does not answer. Is edge serve still running?": lambda route: route.abort("connectionrefused"),
}
"""What every view says when requests end so."""


@pytest.mark.parametrize("said", TROUBLES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_says_what_went_wrong(tab: Callable[..., Opened], site: Running, view: str, said: str) -> None:
    seen = tab(site.url, troubled=True)
    seen.go("search")
    seen.page.route("**/v1/**", TROUBLES[said])
    alert = used(seen, view).locator(f"#view-{view}").get_by_role("alert").first
    expect(alert).to_have_text(said)
    seen.page.unroute_all()
    if view == "engine":
        expect(alert).to_be_hidden()  # it asks again by itself


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
        **hit, "kind": "text", "size": 5, "lines": [[1, "The river."]], "pages": [], "earlier": None,
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


@pytest.mark.parametrize(
    ("mail", "line"),
    [
        (("Ann", "Bo", "Boats", "2026-03-01T09:30:00+00:00"), "Ann to Bo, 2026-03-01 09:30: Boats"),
        (("", "", "Chimney sweep", "2026-12-14T09:30:00+01:00"), "2026-12-14 09:30: Chimney sweep"),
        (("Ann", "", "", ""), "Ann"),
    ],
)
def test_a_line_names_what_a_mail_or_an_event_has(opened: Opened, mail: tuple[str, ...], line: str) -> None:
    found = dict(zip(("sender", "recipients", "subject", "sent"), mail, strict=True))
    hit = {"path": "/a.ics", "id": 1, "line_start": 1, "line_end": 1, "text": "Sweep.", "mail": found}
    opened.page.route("**/v1/search", lambda route: route.fulfill(**streamed(("final", {"results": [hit]}))))
    expect(used(opened, "search").locator(".hit .mail")).to_have_text(line)


def test_where_nothing_is_indexed_the_page_says_how(
    tab: Callable[..., Opened], start_server: Callable[..., Running], tmp_path: Path
) -> None:
    arguments = ("--port", "0", "-c", str(tmp_path / "none"), "--memory-path", str(tmp_path / "memory"))
    server = start_server(*arguments, runtime=tmp_path / "run", usual=False)
    seen = tab(server.url, troubled=True)
    for view in ("search", "ask"):
        expect(used(seen, view).locator("#no-collection")).to_contain_text("edge index FOLDER")
        expect(seen.page.get_by_role("alert")).to_contain_text("there is no collection in")
    with server.client() as client:
        answer = client.post("/v1/search", json={"query": "river"})
    assert answer.status_code == 404  # a condition of the request, and not a fault of the server
