"""What the page asks for and no other client, and how its files are served."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.serve import search
from edge.apps.serve.application import FOLDER, TYPES
from edge.apps.serve.documents import preview
from edge.config import Config
from edge.errors import InputError
from tests.apps.serve.conftest import TEXTS, Running

LONG = "\n\n".join(f"## Part {i}\n\nThe part {i} tells of the number {i} and of nothing else." for i in range(400))


@pytest.fixture(scope="module")
def long_document(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    base = tmp_path_factory.mktemp("long")
    (base / "documents").mkdir()
    (base / "documents" / "long.md").write_text(LONG)
    config = Config(
        memory=10**11, scratch_dir=str(base / "scratch"), models_dir=str(tiny_models), embedder="tiny-embedder"
    )
    with Collection(base / "collection", config=config) as collection:
        collection.index([base / "documents"])
        yield collection


def test_a_preview_holds_the_passage_and_what_stands_around_it(server: Running) -> None:
    with server.client() as client:
        hit = client.post("/v1/search", json={"query": "river", "top_k": 1}).json()["results"][0]
        found = client.post("/v1/preview", json={"id": hit["id"]}).json()
    name = Path(hit["path"]).name
    lines = TEXTS[name].split("\n")
    assert found["path"] == hit["path"]
    assert [line[:2] for line in found["lines"]] == [[i + 1, line] for i, line in enumerate(lines) if line]
    assert found["lines"][0][2] == "heading 1"
    assert (found["earlier"], found["later"], found["kind"]) == (None, None, "markdown")
    assert found["modified"] == hit["modified"]


def test_the_parts_of_a_long_document_follow_each_other(long_document: Collection) -> None:
    path = long_document.files()[0].path
    part = preview(long_document, None, path, 200, 3_000)
    assert any(number == 201 for number, _, _ in part["lines"])
    parts = [part]
    while parts[0]["earlier"] is not None:
        parts.insert(0, preview(long_document, parts[0]["earlier"], "", 1, 3_000))
    while parts[-1]["later"] is not None:
        parts.append(preview(long_document, parts[-1]["later"], "", 1, 3_000))
    assert len(parts) > 5
    for each in parts:
        assert sum(len(text) + 1 for _, text, _ in each["lines"]) <= 3_000
    seen = {number: text for each in parts for number, text, _ in each["lines"]}
    assert seen == {i + 1: line for i, line in enumerate(LONG.split("\n")) if line}


@pytest.mark.parametrize(
    "body", [{"path": "/etc/passwd"}, {"path": "../documents/river.md"}, {"path": "river.md"}, {"id": 10**9}, {}]
)
def test_only_what_is_indexed_is_shown(server: Running, body: dict[str, Any]) -> None:
    with server.client() as client:
        answer = client.post("/v1/preview", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_a_preview_of_nothing_is_refused_by_name(long_document: Collection) -> None:
    with pytest.raises(InputError, match="no passage 77777"):
        preview(long_document, 77777, "", 1, 1_000)


def test_results_bear_the_dates_of_their_files(server: Running) -> None:
    with server.client() as client:
        results = client.post("/v1/search", json={"query": "river garden office"}).json()["results"]
    assert results
    for result in results:
        assert datetime.fromisoformat(result["modified"]).timestamp() == int(Path(result["path"]).stat().st_mtime)


def test_examples_are_headings_of_documents_and_no_names_of_files(tiny_models: Path, tmp_path: Path) -> None:
    long = " ".join(f"This sentence number {number} is about the garden." for number in range(60))
    texts = {
        "beds.md": f"# The garden\n\nIt is dry.\n\nLate frosts\n-----------\n\n{long}\n\n## **Beds**\n\n{long}\n",
        "plain.md": "No heading is here.\n", "code.py": "# The comment\n\n\ndef first_call():\n    pass\n",
        "pasta.html": f"<h1>Pasta</h1><p>Is eaten.</p><h2>Cooking times</h2><p>{long}</p>",
        "shed.md": "# The shed\n\nIt is old.\n", "bare.html": "<p>A page without headings.</p>",
    }  # fmt: skip
    for number, (name, text) in enumerate(texts.items()):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / name).write_text(text)
        os.utime(tmp_path / "files" / name, (number, number))
    config = Config(memory=10**11, models_dir=str(tiny_models), embedder="tiny-embedder")
    with Collection(tmp_path / "collection", config=config) as collection:
        collection.index([tmp_path / "files"])
        found = search.examples(collection.database)
    assert found == [
        {"heading": "Cooking times", "title": "Pasta"},
        {"heading": "Late frosts", "title": "The garden"},
        {"heading": "The shed", "title": "The shed"},
    ]


def test_scopes_are_counted(server: Running) -> None:
    with server.client() as client:
        for text in ("The user likes tea.", "The user lives in Ghent."):
            client.post("/memories", json={"messages": text, "user_id": "scoped", "agent_id": "a"}).raise_for_status()
        scopes = client.get("/v1/scopes").json()["scopes"]
    assert {"user_id": "scoped", "agent_id": "a", "run_id": None, "memories": 2} in scopes


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


def page(papers: Running, **asked: Any) -> Any:
    with papers.client() as client:
        return client.post("/v1/page", json=asked)


@pytest.fixture(scope="module")
def path(papers: Running) -> str:
    with papers.client() as client:
        hits = client.post("/v1/search", json={"query": "snow", "top_k": 5}).json()["results"]
    return next(str(hit["path"]) for hit in hits if hit["path"].endswith(".pdf"))


def test_a_page_comes_as_a_picture_with_a_passage_marked(papers: Running, path: str) -> None:
    plain, marked = page(papers, path=path, page=1), page(papers, path=path, page=1, first=2, last=3)
    for answer in (plain, marked):
        assert (answer.status_code, answer.headers["content-type"], answer.headers["edge-pages"]) == (
            200,
            "image/png",
            "2",
        )
        assert answer.content.startswith(b"\x89PNG")
    assert plain.content != marked.content
    endless = page(papers, path=path, page=1, first=1, last=10**12)  # no list of so many numbers is made
    assert endless.content == page(papers, path=path, page=1, first=1, last=99).content
    to_the_end = page(papers, path=path, page=1, first=2, last=1)  # the passage ends on the next page
    assert to_the_end.content == page(papers, path=path, page=1, first=2, last=99).content


def test_only_an_indexed_pdf_that_has_not_changed_is_opened(papers: Running, path: str) -> None:
    secret = papers.folder / "secret.pdf"
    secret.write_bytes(Path(path).read_bytes())
    note = str(Path(path).with_name("note.md"))
    for asked, status, said in (
        ({"path": str(secret)}, 422, "is not indexed in this collection"),
        ({"path": f"{path}/../../secret.pdf"}, 422, "is not indexed in this collection"),
        ({"path": note}, 422, "has no pages"),
        ({"path": path, "page": 3}, 422, "there is no page 3; the document has 2"),
        ({"page": 1}, 422, "`path`"),
    ):
        answer = page(papers, **asked)
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    before = os.stat(path)
    try:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        answer = page(papers, path=path)
        assert (answer.status_code, "has changed since it was indexed" in answer.json()["detail"]) == (409, True)
        Path(path).rename(secret)
        assert "cannot be read now" in page(papers, path=path).json()["detail"]
    finally:
        if not Path(path).exists():
            secret.rename(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert page(papers, path=path).status_code == 200
