"""The open document of the page, in a real browser: as text, as pages, and in the person's editor."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.apps.serve.conftest import SETTLED, Opened, Running


def test_a_document_opens_at_its_passage(opened: Opened) -> None:
    page = opened.go("search?q=melts")
    page.locator(".hit", has_text="river.md").locator(".open").click()
    document = page.locator("#document")
    expect(document.locator("h2")).to_have_text("The river")
    best = document.locator(".line.passage", has_text="floods every spring")
    expect(best.locator(".number")).to_have_text("3")
    expect(document.locator(".line").nth(0)).to_contain_text("# The river")
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.keyboard.press("c")
    expect(page.locator("#announcement")).to_have_text(re.compile(r"Copied .*river\.md:\d+$"))
    document.get_by_role("button", name="Close").click()
    expect(document).to_be_hidden()


def test_a_pdf_opens_as_text_and_as_pages_with_the_passage_marked(browser: Any, papers: Running) -> None:
    tab = Opened(browser, papers.url)
    page = tab.go("search?q=snow")
    page.locator(".hit", has_text="snow melts").locator(".open").click()
    document = page.locator("#document")
    expect(document.locator(".lines")).to_contain_text("when the snow melts.")
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
    expect(document.locator(".lines")).to_contain_text("when the snow melts.")
    tab.context.close()
    assert not tab.complaints
    assert not tab.elsewhere


def test_a_key_opens_the_document_in_the_editor(
    browser: Any, start_server: Callable[..., Running], tmp_path: Path
) -> None:
    noting = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]))"
    editor = f'"{sys.executable}" -c "{noting}" {tmp_path / "noted"} {{path}}:{{line}}'
    running = start_server("--editor", editor, runtime=tmp_path / "run")
    tab = Opened(browser, running.url)
    page = tab.go("search?q=river")
    hit = page.locator(".hit", has_text="river.md")
    expect(page.locator("#search-state")).to_have_text(SETTLED)
    hit.locator(".open").click()
    expect(page.get_by_role("button", name="Open in editor")).to_be_visible()
    page.locator("#document h2").press("e")
    expect(page.locator("#announcement")).to_have_text("Opened in the editor")
    for _ in range(100):
        if (tmp_path / "noted").exists() and (tmp_path / "noted").read_text():
            break
        page.wait_for_timeout(50)
    assert re.fullmatch(r".*/river\.md:\d+", (tmp_path / "noted").read_text())
    tab.context.close()
    assert not tab.complaints


def cells(table: Any, kind: str) -> list[list[str]]:
    return [row.locator(kind).all_text_contents() for row in table.locator("tbody tr").all()]
