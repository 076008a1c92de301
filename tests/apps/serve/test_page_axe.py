"""axe-core finds no violation in any view, light and dark, wide and narrow. `EDGE_AXE` names its file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.apps.serve.conftest import Opened, Running
from tests.conftest import axe


def search(page: Page) -> None:
    expect(page.locator("#search-state")).to_have_text(re.compile("results? in"))


def document(page: Page) -> None:
    search(page)
    page.locator(".hit .open").first.click()
    page.locator("#document .passage").first.wait_for()


def paper(page: Page) -> None:
    search(page)
    page.locator(".hit", has_text="rivers.pdf").locator(".open").first.click()
    page.get_by_role("button", name="Page", exact=True).click()
    page.locator("canvas.sheet").wait_for()


def answer(page: Page) -> None:
    page.locator("#question").fill("When does the river flood?")
    page.locator("#question").press("Enter")
    page.locator(".how summary").click()


def remember(page: Page) -> None:
    page.locator("#memory-text").fill("The user likes tea.")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#announcement")).to_have_text("Remembered")  # the list has been drawn again


def memory(page: Page) -> None:
    remember(page)
    page.locator("#memories .card").first.get_by_role("button", name="History").click()
    page.locator(".history").first.wait_for()


def collections(page: Page) -> None:
    for summary in page.locator("#collections summary").all():
        summary.click()
    page.locator(".files li").first.wait_for()


def engine(page: Page) -> None:
    page.get_by_role("img").wait_for()
    page.locator("summary").last.click()


def dialog(page: Page) -> None:
    page.locator("#help-button").click()


def refused(page: Page) -> None:
    page.route("**/v1/search", lambda route: route.fulfill(status=429, json={"detail": "memory is short"}))
    page.locator("#query").fill("river")
    page.get_by_role("alert").wait_for()


def token(page: Page) -> None:
    page.route("**/v1/search", lambda route: route.fulfill(status=401, json={"detail": "a token is needed"}))
    page.locator("#query").fill("river")
    page.locator("#token").wait_for()


def editing(page: Page) -> None:
    remember(page)
    page.locator("#memories .card").last.get_by_role("button", name="Delete").click()
    page.locator(".danger").wait_for()
    page.locator("#memories .card").first.get_by_role("button", name="Edit").click()
    page.locator(".edit").first.wait_for()


VIEWS = {
    "search": ("search?q=river", search), "document": ("search?q=river", document),
    "refused": ("search", refused), "token": ("search", token),
    "ask": ("ask", answer), "memory": ("memory", memory), "editing": ("memory", editing),
    "collections": ("collections", collections), "engine": ("engine", engine), "help": ("search", dialog),
}  # fmt: skip
PAPERS = {"paper": ("search?q=snow+melts", paper)}
"""Views of the server of PDFs."""


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", {**VIEWS, **PAPERS})
def test_axe_finds_no_violation(
    tab: Callable[..., Opened], request: pytest.FixtureRequest, view: str, scheme: str, width: int
) -> None:
    site: Running = request.getfixturevalue("papers" if view in PAPERS else "site")
    with site.client() as client:
        client.post("/v1/search", json={"query": "river"}).raise_for_status()
    # The policy, which the other tests hold, would refuse axe, too.
    size = {"width": width, "height": 740}
    seen = tab(site.url, troubled=True, bypass_csp=True, color_scheme=scheme, viewport=size)
    where, prepare = {**VIEWS, **PAPERS}[view]
    page = seen.go(where)
    if view == "collections":
        page.locator("#collections summary").first.wait_for()
    prepare(page)
    page.evaluate(Path(axe()).read_text("utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    assert found["passes"] or found["incomplete"]
    assert [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in found["violations"]] == []
