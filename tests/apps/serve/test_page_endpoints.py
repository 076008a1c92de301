"""What the page asks of the server, and the editor that opens a document."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.serve import collections
from edge.apps.serve.application import FOLDER, TYPES
from edge.apps.serve.collections import preview
from edge.apps.serve.server import Editor, is_passive, system_command
from edge.config import Config
from edge.errors import CapabilityError, ConfigError
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


def test_scopes_are_counted(server: Running) -> None:
    with server.client() as client:
        for text in ("The user likes tea.", "The user lives in Ghent."):
            client.post("/memories", json={"messages": text, "user_id": "scoped", "agent_id": "a"}).raise_for_status()
        scopes = client.get("/v1/scopes").json()["scopes"]
    assert {"user_id": "scoped", "agent_id": "a", "run_id": None, "memories": 2} in scopes


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
        found = collections.examples(collection.database)
    assert found == [
        {"heading": "Cooking times", "title": "Pasta"},
        {"heading": "Late frosts", "title": "The garden"},
        {"heading": "The shed", "title": "The shed"},
    ]


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


NOTING = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(sys.argv[2:]) + '\\n')"


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[int], list[list[str]]]:
    """The arguments that the editor of `command` was started with, as soon as it was started so often."""

    def read(times: int) -> list[list[str]]:
        for _ in range(600):
            lines = (tmp_path / "noted").read_text().splitlines() if (tmp_path / "noted").exists() else []
            if len(lines) >= times:
                return [json.loads(line) for line in lines]
            time.sleep(0.05)
        pytest.fail("the editor was not started")

    return read


def command(folder: Path, *words: str) -> str:
    return f'"{sys.executable}" -c "{NOTING}" {folder / "noted"} ' + " ".join(words)


@pytest.mark.parametrize(
    "name", ["plain.md", "two words.md", "$(touch pwned).md", "'quoted\".md", "{line}.md", "; touch pwned;.md", "-x.md"]
)
def test_the_path_is_one_argument_whatever_it_holds(
    tmp_path: Path, noted: Callable[[int], list[list[str]]], name: str
) -> None:
    path = tmp_path / name
    Editor(command(tmp_path, "--goto", "{path}:{line}", "--page={page}")).open(path, 12, 3)
    assert noted(1) == [["--goto", f"{path}:12", "--page=3"]]
    assert not list(tmp_path.glob("pwned*"))


@pytest.mark.parametrize("given", ["code", "{path}", "code --goto {line}", "code 'unclosed {path}", "   x"])
def test_a_command_that_cannot_be_used_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(ConfigError, match="editor's command"):
        Editor(given)


def test_an_editor_that_is_not_there(tmp_path: Path) -> None:
    assert not Editor("").is_named
    with pytest.raises(CapabilityError, match="cannot be started: No such file"):
        Editor("no-such-editor {path}").open(tmp_path, 1, 1)


def test_only_indexed_documents_are_opened(
    start_server: Callable[..., Running], tmp_path: Path, noted: Callable[[int], list[list[str]]]
) -> None:
    running = start_server("--editor", command(tmp_path, "{path}", "{line}"), runtime=tmp_path / "run")
    secret = tmp_path / "secret.md"
    secret.write_text("secret")
    with running.client() as client:
        assert client.get("/v1/offers").json()["editor"] is True
        hits = client.post("/v1/search", json={"query": "river", "top_k": 3}).json()["results"]
        path = next(hit["path"] for hit in hits if Path(hit["path"]).name in TEXTS)
        for asked in ({"path": str(secret)}, {"path": f"{path}/../{secret}"}, {"path": "-x"}, {}):
            assert client.post("/v1/open", json=asked).status_code == 422
        assert (
            client.post("/v1/open", json={"path": path}, headers={"Origin": "https://example.com"}).status_code == 403
        )
        assert client.post("/v1/open", json={"path": path, "line": 3}).json() == {"opened": path}
        assert client.post("/v1/open", json={"path": path}).status_code == 200
    assert sorted(noted(2)) == [[path, "1"], [path, "3"]]  # two programs, of which either may be first


def test_without_the_option_nothing_is_opened(server: Running) -> None:
    with server.client() as client:
        assert client.get("/v1/offers").json()["editor"] is False
        answer = client.post("/v1/open", json={"path": "/etc/passwd"})
    assert (answer.status_code, "edge serve --editor" in answer.json()["detail"]) == (501, True)


def test_other_machines_cannot_open_anything_here(edge_verb: Callable[..., Any]) -> None:
    pytest.importorskip("starlette")
    ended = edge_verb("serve", "--host", "0.0.0.0", "--port", "0", "--editor", "code {path}")
    assert (ended.code, "--editor opens documents on this machine" in ended.err) == (2, True)


def test_a_program_or_a_launcher_is_never_opened(tmp_path: Path) -> None:
    shown, run, page = tmp_path / "a.PDF", tmp_path / "b.pdf", tmp_path / "c.html"
    for path in (shown, run, page):
        path.write_text("x")
    run.chmod(0o744)
    assert is_passive(shown)
    assert not is_passive(run)
    (tmp_path / "folder.pdf").mkdir()
    for name in ("a.desktop", "a.sh", "a.docm", "a.svg", "a.lnk", "a.url", "a.command", "a", "a.pdf.exe"):
        (tmp_path / name).write_text("x")
    for name, target in (("program.pdf", run), ("page.pdf", page), ("gone.pdf", tmp_path / "gone"), ("x.html", shown)):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "round.pdf").symlink_to(tmp_path / "round.pdf")
    (tmp_path / "link.pdf").symlink_to(shown)
    assert {path.name for path in tmp_path.iterdir() if is_passive(path)} == {"a.PDF", "link.pdf"}


def test_the_systems_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert system_command() == ""
    monkeypatch.setenv("DISPLAY", ":0")
    assert system_command() == "xdg-open {path}"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert system_command() == ""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert system_command() == "open {path}"


@pytest.mark.skipif(sys.platform != "linux", reason="the command of Linux is replaced here")
def test_its_own_program_opens_a_document_only_for_the_token(
    start_server: Callable[..., Running], tmp_path: Path, noted: Callable[[int], list[list[str]]]
) -> None:
    """`xdg-open` is a script here that notes its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "xdg-open").write_text(f'#!/bin/sh\nexec {command(tmp_path)} "$@"\n')
    (folder / "xdg-open").chmod(0o755)
    screen = {"DISPLAY": ":0", "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    running = start_server("--new-token", runtime=tmp_path / "run", XDG_DATA_HOME=str(tmp_path), **screen)
    assert running.process.stderr is not None
    token = next(line for line in running.process.stderr if "shown once" in line).rpartition(" ")[2].strip()
    with running.client() as client:
        assert client.post("/v1/open", json={"path": "/etc/passwd", "own": True}).status_code == 401
        client.headers["Authorization"] = f"Bearer {token}"
        hit = client.post("/v1/search", json={"query": "river", "top_k": 1}).json()["results"][0]
        found = client.post("/v1/preview", json={"id": hit["id"]}).json()
        assert found["opens"]
        asked = {"path": found["path"], "own": True}
        for path in ("/etc/passwd", str(tmp_path / "secret.md")):
            assert client.post("/v1/open", json={**asked, "path": path}).status_code == 422
        assert client.post("/v1/open", json=asked, headers={"Origin": "https://example.com"}).status_code == 403
        assert client.post("/v1/open", json=asked).json() == {"opened": found["path"]}
        assert noted(1) == [[found["path"]]]
        Path(found["path"]).chmod(0o755)
        assert client.post("/v1/open", json=asked).status_code == 403
        assert not client.post("/v1/preview", json={"id": hit["id"]}).json()["opens"]
        Path(found["path"]).chmod(0o644)
    other = start_server(runtime=tmp_path / "other", **screen)
    with other.client() as client:
        answer = client.post("/v1/open", json=asked)
    assert (answer.status_code, "edge serve --token" in answer.json()["detail"]) == (501, True)
