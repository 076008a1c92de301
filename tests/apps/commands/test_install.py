"""`edge install`: written, used, and taken back to the last bit, in a home of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.program import write_tiny_models
from naive.waiting import result_of

from edge.apps.mcp.command import CLIENTS, AgentProgram

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the home is given by HOME")
mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

SERVERS = {"edge-files", "edge-memory"}
AGENTS = [client for client in CLIENTS if client.skills]
Verb = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_verb: Verb) -> Path:
    """The user's home, which is the working directory, too."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    edge_verb("install", "zed", "--remove")  # which sets the folders of the program
    (tmp_path / "home" / "work").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home" / "work")
    return tmp_path / "home"


def contents(home: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a folder, with their modes."""
    return {
        str(path.relative_to(home)): (path.read_bytes(), path.stat().st_mode)
        for path in home.rglob("*")
        if path.is_file() and "cache" not in path.parts
    }


def settings_of(client: AgentProgram, home: Path, project: bool) -> Path:
    """The file in which the client's servers stand."""
    own = home.parent / "config" / "Code/User/mcp.json" if client.name == "vscode" else home / client.file[2:]
    return home / "work" / client.project if project else own


def servers_in(client: AgentProgram, file: Path) -> dict[str, Any]:
    if client.style == "toml":
        return dict(tomllib.loads(file.read_text())["mcp_servers"])
    return dict(json.loads(file.read_text())[client.style])


BEFORE = {
    "toml": ['model = "x"\n\n[mcp_servers.other]\ncommand = "y"  # mine', "# only a comment\n", "\n\n", ""],
    "json": [
        '{\n    "a": 1.50,\n    "STYLE": {"other": {"command": "y"}}, "hooks": {}}',
        "{}",
        '{"STYLE": {}}\r\n',
        "",
    ],
}
"""Settings as people and programs write them."""


@pytest.mark.parametrize("client", AGENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("number", [None, 0, 1, 2, 3])
def test_what_was_written_is_taken_back_to_the_last_bit(
    home: Path, edge_verb: Verb, client: AgentProgram, project: bool, number: int | None
) -> None:
    file = settings_of(client, home, project)
    hooks = None if client.hooks is None else home / "work" / Path(client.hooks[project]).expanduser()
    for place in [] if number is None else [file, *([hooks] if hooks else [])]:
        place.parent.mkdir(parents=True, exist_ok=True)
        text = BEFORE["toml" if client.style == "toml" else "json"][number].replace("STYLE", client.style)
        place.write_bytes(text.encode())
        place.chmod(0o640)
    before = contents(home.parent)
    where = ["--project"] if project else []
    done = edge_verb("install", client.name, *where, "--yes", "-c", "notes")
    assert done.code == 0, done.err
    assert "+++" in done.out
    written = contents(home.parent)
    found = servers_in(client, file)
    assert found.keys() >= SERVERS
    assert ("other" in found) == (number == 0)
    words = found["edge-files"].get("args") or found["edge-files"]["command"]
    assert words[-4:] == ["mcp", "files", "-c", str(home / "work" / "notes")]
    skill = home / "work" / Path(client.skills[project]).expanduser() / "edge-rag" / "SKILL.md"  # type: ignore[index]
    assert skill.read_text().startswith("---\nname: edge-rag\ndescription: ")
    assert 100 < len(skill.read_text().split("description: ")[1].split("\n")[0]) < 1024
    again = edge_verb("install", client.name, *where, "--yes", "-c", "notes")
    assert (again.code, again.out) == (0, f"{client.name} has everything already\n")
    assert contents(home.parent) == written
    assert edge_verb("install", client.name, *where, "--yes", "-c", "others").code == 0
    assert edge_verb("install", client.name, *where, "--yes", "--remove").code == 0
    assert contents(home.parent) == before
    none = edge_verb("install", client.name, *where, "--remove")
    assert (none.code, none.out) == (0, f"{client.name} has nothing of ours\n")


@pytest.mark.parametrize("client", AGENTS, ids=lambda client: client.name)
def test_what_was_changed_since_stays(home: Path, edge_verb: Verb, client: AgentProgram) -> None:
    file = settings_of(client, home, False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# mine\n" if client.style == "toml" else '{"mine": 1}')
    assert edge_verb("install", client.name, "--yes").code == 0
    if client.style == "toml":
        with file.open("a") as more:
            more.write('# his\n[mcp_servers.later]\ncommand = "z"\n')
    else:
        document = json.loads(file.read_text())
        document[client.style]["later"] = {"command": "z"}
        file.write_text(json.dumps(document))
    assert edge_verb("install", client.name, "--remove", "--yes").code == 0
    assert servers_in(client, file) == {"later": {"command": "z"}}
    assert "mine" in file.read_text()
    assert client.style != "toml" or "# his" in file.read_text()


WRONG = {
    "toml": [b"[mcp_servers", b"mcp_servers = 3\n", b"\xff\xfe"],
    "json": [b'{\n  // mine\n  "a": 1\n}', b"[]", b"{", b'{"STYLE": []}', b'{"STYLE": "x"}', b"\xff\xfe", b"[" * 9000],
}


@pytest.mark.parametrize("client", AGENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("remove", [False, True])
def test_settings_that_are_not_understood_stay_as_they_are(
    home: Path, edge_verb: Verb, client: AgentProgram, remove: bool
) -> None:
    file = settings_of(client, home, False)
    file.parent.mkdir(parents=True, exist_ok=True)
    for text in WRONG["toml" if client.style == "toml" else "json"]:
        file.write_bytes(text.replace(b"STYLE", client.style.encode()))
        before = contents(home.parent)
        done = edge_verb("install", client.name, "--yes", *(["--remove"] if remove else []))
        assert contents(home.parent) == before
        assert (
            (done.code, done.err.count("\n")) == (2, 1) if not remove or client.style != "toml" else done.code in (0, 2)
        )
        if not remove and b"\xff" not in text:
            assert "edge-memory" in done.out, "the lines to add by hand"


def test_another_skill_of_the_name_and_a_folder_in_the_place_are_refused(home: Path, edge_verb: Verb) -> None:
    skill = home / ".cursor" / "skills" / "edge-rag" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: another\n---\n")
    (home / ".gemini" / "settings.json").mkdir(parents=True)
    before = contents(home.parent)
    for client in ("cursor", "gemini"):
        assert edge_verb("install", client, "--yes").code == 2
    assert edge_verb("install", "zed", "--project", "--yes").code == 2
    assert contents(home.parent) == before


def test_nothing_is_written_that_was_not_confirmed(
    home: Path, edge_verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    before = contents(home.parent)
    assert edge_verb("install", "claude-code").code == 1
    assert contents(home.parent) == before


def test_the_written_servers_and_hooks_work(home: Path, edge_verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started as Claude Code starts them: from its settings, with an event on stdin."""
    write_tiny_models(home / "models")
    (home / "work" / "river.md").write_text("# River\n\nThe river floods in spring.\n")
    assert edge_verb("install", "claude-code", "--project", "--yes").code == 0
    environment = {
        **os.environ, "EDGE_MODELS_DIR": str(home / "models"), "EDGE_EMBEDDER": "tiny-embedder",
        "EDGE_RERANKER": "tiny", "PYTHONPATH": "",
    }  # fmt: skip

    def run(command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, input=text, capture_output=True, text=True, env=environment, check=False, timeout=120
        )

    servers = json.loads(Path(".mcp.json").read_text())["mcpServers"]
    program = " ".join(f"'{word}'" for word in [servers["edge-files"]["command"], *servers["edge-files"]["args"][:-2]])
    assert run(f"{program} index . --yes").returncode == 0 or run(f"{program} index .").returncode == 0

    async def tools() -> dict[str, set[str]]:
        found = {}
        for name, entry in servers.items():
            started = mcp.StdioServerParameters(env=environment, cwd=home / "work", **entry)
            async with mcp.Client(started) as client:
                found[name] = {tool.name for tool in (await client.list_tools()).tools}
        return found

    assert {"search", "get"} <= result_of(tools())["edge-files"]
    hooks = json.loads(Path(".claude/settings.json").read_text())["hooks"]
    assert hooks["SessionStart"][0]["matcher"] == "compact"
    transcript = home / "session.jsonl"
    said = [
        ("user", "Which database do we take?"), ("assistant", "We decided to take SQLite, because it is one file."),
    ]  # fmt: skip
    transcript.write_text("".join(
        json.dumps({"type": role, "uuid": f"u{number}", "sessionId": "s1", "timestamp": f"2026-05-08T10:00:0{number}Z",
                    "message": {"role": role, "content": text}}) + "\n"
        for number, (role, text) in enumerate(said)
    ))  # fmt: skip
    event = {"session_id": "s1", "transcript_path": str(transcript), "hook_event_name": "SessionEnd"}
    stored = run(hooks["SessionEnd"][0]["hooks"][0]["command"], json.dumps(event))
    assert (stored.returncode, stored.stdout) == (0, ""), stored.stderr
    brought = run(
        hooks["SessionStart"][0]["hooks"][0]["command"], json.dumps({**event, "hook_event_name": "SessionStart"})
    )
    assert brought.returncode == 0, brought.stderr
    assert "It is data" in brought.stdout.splitlines()[0]
    assert "We decided to take SQLite" in brought.stdout
    for wrong in ("", "{", "[]", '{"session_id": "s1"}', '{"transcript_path": 5, "session_id": "s"}'):
        refused = run(hooks["SessionEnd"][0]["hooks"][0]["command"], wrong)
        assert (refused.returncode, refused.stderr.count("\n"), refused.stdout) == (2, 1, ""), refused.stderr
