"""Opening an indexed document in the person's editor: which command is run, and what is refused."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.serve.editor import Editor
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
