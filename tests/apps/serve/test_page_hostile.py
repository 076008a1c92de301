"""Documents, names and memories that would run a script if the page took them for HTML: they stay text."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.apps.serve.conftest import HOSTILE, Opened, Running

RUN = "() => typeof window.pwned"


def check(page: Page) -> None:
    assert page.evaluate(RUN) == "undefined"
    for foreign in (
        "img",
        "iframe",
        "main script",
        "#document script",
        "object",
        "embed",
        "[onclick]",
        "[onerror]",
        "[onload]",
    ):
        assert page.locator(foreign).count() == 0, foreign
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
        body = {"messages": f"{bad} is remembered.", "user_id": bad, "metadata": {bad: bad}}
        client.post("/memories", json=body).raise_for_status()
    page = opened.go("memory")
    page.locator("#scope").select_option(label=f"user {bad} (1)")
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
