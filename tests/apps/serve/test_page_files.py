"""The page's files, without a browser: how they are served, and that they hold nothing that runs a document's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge.apps.serve.application import FOLDER, TYPES
from tests.apps.serve.conftest import Running

FILES = sorted(FOLDER.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
NAMESPACES = {"http://www.w3.org/2000/svg"}
"""Names that look like addresses, and are asked for by nobody."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_served_with_its_type_and_a_strict_policy(server: Running, path: Path) -> None:
    with server.client() as client:
        answer = client.get(f"/page/{path.name}")
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == TYPES[path.suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"


def test_the_address_itself_is_the_page(server: Running) -> None:
    with server.client() as client:
        assert client.get("/").content == (FOLDER / "index.html").read_bytes()
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, "/").status_code == 405


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/../page.py", "/page/%2e%2e/page.py", "/page/%2e%2e%2fpage.py", "/page/none.js"]
)
def test_nothing_beside_the_page_is_served(server: Running, path: str) -> None:
    with server.client() as client:
        assert client.send(client.build_request("GET", server.url + path)).status_code == 404


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_an_address_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    addresses = re.findall(r"(?:https?|wss?|ftp):?//[^\s\"'`)>]+|[\"'(=]//[\w.-]+", text, re.IGNORECASE)
    assert set(addresses) <= NAMESPACES
    assert not re.search(r"@import|url\(", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_text_into_html_or_code(path: Path) -> None:
    words = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTMLUnsafe|createContextualFragment|DOMParser|"
        r"srcdoc|\beval\b|new Function|javascript:|importScripts|trustedTypes"
    )
    assert not re.search(words, path.read_text("utf-8"))


def test_the_document_holds_no_script_and_no_style() -> None:
    text = (FOLDER / "index.html").read_text("utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)


def test_every_module_is_there_and_used() -> None:
    """From what the document names, along the imports."""
    waiting = re.findall(r'(?:src|href)="/page/([^"]+)"', (FOLDER / "index.html").read_text("utf-8"))
    reached = {"index.html"}
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            if name.endswith(".js"):
                waiting += re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text("utf-8"))
    assert reached == {path.name for path in FILES}
