"""The open document of the page, in a real browser: rendered, as source, as pages, and in the person's editor."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.apps.serve.conftest import SETTLED, Opened, Running


def test_a_document_opens_at_its_passage_rendered_and_as_source(opened: Opened) -> None:
    page = opened.go("search?q=melts")
    page.locator(".hit", has_text="river.md").locator(".open").click()
    document = page.locator("#document")
    expect(document.locator("h2")).to_have_text("The river")
    expect(document.locator(".rendered .passage", has_text="floods every spring")).to_be_visible()
    document.get_by_role("button", name="Source", exact=True).click()
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


def test_a_spreadsheet_opens_as_a_table_with_its_rows_marked(browser: Any, papers: Running) -> None:
    tab = Opened(browser, papers.url)
    page = tab.go("search?q=Lima+days")
    page.locator(".hit", has_text="trips.csv").locator(".open").first.click()
    table = page.locator("#document table")
    expect(table.locator("thead th")).to_have_text(["Row", "City", "Note: short", "Days"])
    assert cells(table, "th") == [["2"], ["3"], ["5"]]
    assert cells(table, "td") == [["Porto", "rain: much", "3"], ["", "two lines", ""], ["Lima", "", "5"]]
    expect(table.locator("tbody tr.passage")).to_have_count(3)
    expect(page.get_by_role("button", name="Open in its program")).to_have_count(0)
    page.get_by_role("button", name="Lines", exact=True).click()
    expect(page.locator("#document .lines")).to_contain_text("City: Lima")
    tab.context.close()
    assert not tab.complaints


def test_each_sheet_has_its_own_columns_and_marks(browser: Any, papers: Running) -> None:
    """A title stands above its table, and a sheet without names of columns has its values alone."""
    tab = Opened(browser, papers.url)
    page = tab.go("search?q=phone+of+Ada")
    file = page.locator(".hit", has_text="costs.xlsx")  # of which the other sheet is the best place
    file.get_by_role("button", name="page 2", exact=True).click()
    document = page.locator("#document .rendered")
    expect(document.locator("h3")).to_have_text(["Costs", "People", "Numbers"])
    expect(document.locator("p")).to_have_text(["Costs: the house"])
    costs, people, numbers = document.locator("table").all()
    expect(costs.locator("thead th")).to_have_text(["Row", "Item", "Room", "Price"])
    assert cells(costs, "td")[-1] == ["t299", "", "299"]
    assert cells(people, "td") == [["Ada", "12"], ["Bob", "34"]]
    assert (cells(numbers, "th"), cells(numbers, "td")) == ([["1"], ["2"]], [["3", "9"], ["4", "16"]])
    assert numbers.locator("thead").count() == 0
    assert costs.locator(".passage").count() == 0
    expect(people.locator(".passage")).to_have_count(2)
    tab.context.close()
    assert not tab.complaints


def test_the_names_of_columns_are_told_of_a_part_below_them(papers: Running) -> None:
    with papers.client() as client:
        hits = client.post("/v1/search", json={"query": "t250", "top_k": 99, "filters": ["type:xlsx"]}).json()[
            "results"
        ]
        part = next(hit for hit in hits if "t250" in hit["snippet"])
        found = client.post("/v1/preview", json={"id": part["id"], "max_bytes": 500}).json()
        note = client.post("/v1/preview", json={"path": part["path"].replace("costs.xlsx", "note.md")}).json()
    assert found["lines"][0][0] > 100
    assert found["sheets"] == [{"page": 1, "name": "Costs", "head": 3, "columns": "Item | Room | Price"}]
    assert note["sheets"] is None
