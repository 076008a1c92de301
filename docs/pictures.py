"""Makes docs/images from the page of a running server: `python docs/pictures.py http://127.0.0.1:8777`.

The server needs documents about its memory limit (this documentation), a PDF that is called pump-manual.pdf, a page
pasta.html with a table of cooking times, and some memories. Playwright, Pillow and Chromium are needed.
"""

from __future__ import annotations

import re
import shutil
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).with_name("images")
WIDE, NARROW = (1200, 760), (390, 760)
_FOUND = re.compile(r"results? in \d")


def search(page: Any, query: str = "how is the smallest memory limit found") -> None:
    """Results."""
    page.locator("#query").fill(query)
    _wait(page, "#search-state", _FOUND)


def pdf(page: Any) -> None:
    """The page of a PDF."""
    search(page, "how often is the pump serviced")
    page.locator(".hit", has_text="pump-manual.pdf").locator(".open").first.click()
    page.get_by_role("button", name="Page", exact=True).click()
    page.locator("canvas.sheet").wait_for()


def document(page: Any) -> None:
    """A document at its passage."""
    search(page, "how long is lasagne cooked")
    page.locator(".hit", has_text="pasta.html").locator(".open").first.click()
    page.locator("#document .prose").wait_for()


def cited(page: Any) -> None:
    """An answer, and the passage that it cites."""
    page.locator("#question").fill("How often is the filter of the pump changed?")
    page.locator("#question").press("Enter")
    page.locator(".cite").first.click()
    page.locator("#document .passage").first.wait_for()


def memory(page: Any) -> None:
    """Memories."""
    page.locator("#memories .card").first.wait_for()


def collections(page: Any) -> None:
    """What a collection holds."""
    page.locator("#collections .facts-list").first.wait_for()


def engine(page: Any) -> None:
    """Holders of memory."""
    page.locator(".track").first.wait_for()


SCENES = {
    "search": ("search", search), "document": ("search", document), "pdf": ("search", pdf),
    "cited": ("ask", cited), "memory": ("memory", memory),
    "collections": ("collections", collections), "engine": ("engine", engine),
}  # fmt: skip
"""The pictures by name: the view, and the steps that lead to what is shown."""

PICTURES = [*((name, WIDE, "light") for name in SCENES), ("search", WIDE, "dark")]
PICTURES += [("search", NARROW, "light"), ("engine", NARROW, "dark")]


def main(url: str) -> None:
    """Makes every picture."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, size, scheme in PICTURES:
            view, steps = SCENES[name]
            viewport: Any = {"width": size[0], "height": size[1]}
            context = browser.new_context(color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
            page = context.new_page()
            page.goto(f"{url}/#{view}")
            steps(page)
            page.wait_for_timeout(300)
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
            kind = "narrow-" if size == NARROW else ""
            picture.quantize(256).save(IMAGES / f"page-{name}-{kind}{scheme}.png", optimize=True)
            context.close()
        browser.close()


def _wait(page: Any, selector: str, text: re.Pattern[str]) -> None:
    page.locator(selector, has_text=text).wait_for()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py URL")
    main(sys.argv[1])
