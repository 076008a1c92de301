"""Opening an indexed document in the person's editor: which command is run, and what is refused."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.serve.editor import Editor, is_passive, system_command
from edge.errors import CapabilityError, ConfigError
from tests.apps.serve.conftest import TEXTS, Running

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
