"""The configuration of MCP clients, ready to paste."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.apps.mcp import command
from edge.apps.mcp.command import CLIENTS, client_named, configuration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_gets_what_it_reads(client: Any) -> None:
    text = configuration(client, "edge-files", ["mcp", "files", "-c", 'my "notes"'])
    if client.style == "claude":
        assert text.startswith("claude mcp add edge-files -- ")
        return
    read: Any = tomllib.loads(text) if client.style == "toml" else json.loads(text)
    (servers,) = read.values()
    entry = servers["edge-files"]
    assert entry["args"][-4:] == ["mcp", "files", "-c", 'my "notes"']
    assert entry["command"]


def test_the_command_prints_one_or_all(edge_verb: Callable[..., Any]) -> None:
    done = edge_verb("mcp", "config", "files", "--client", "cursor", "-c", "notes")
    assert done.code == 0
    assert json.loads(done.out)["mcpServers"]["edge-files"]["args"][-4:] == ["mcp", "files", "-c", "notes"]
    every = edge_verb("mcp", "config", "memory").out
    assert all(f"# {client.name}: " in every for client in CLIENTS)
    assert edge_verb("mcp", "config", "files", "--client", "nobody").code == 2


@pytest.mark.parametrize("name", [client.name for client in CLIENTS if client.file])
def test_a_server_is_written_into_the_clients_file(
    edge_verb: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    client = replace(client_named(name), file=str(tmp_path / "settings"))
    monkeypatch.setattr(command, "client_named", lambda name: client)
    file = Path(client.file)
    other = '[mcp_servers.other]\ncommand = "x"\n' if client.style == "toml" else '{"theme": "dark"}'
    file.write_text(other)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    refused = edge_verb("mcp", "install", name, "files", "-c", "notes")
    assert (refused.code, file.read_text()) == (1, other)
    assert "edge-files" in refused.out
    for wrong in (("memory", "-c", "notes"), ("files", "--nothing"), ("files", "--user-id", "ann")):
        assert edge_verb("mcp", "install", name, *wrong, "--yes").code == 2, "the client could not start this server"
        assert edge_verb("mcp", "config", *wrong).code == 2
    assert file.read_text() == other
    for server in (("files", "-c", "notes"), ("memory", "--user-id", "ann")):
        assert edge_verb("mcp", "install", name, *server, "--yes").code == 0
    read: Any = tomllib.loads(file.read_text()) if client.style == "toml" else json.loads(file.read_text())
    servers = read["mcp_servers" if client.style == "toml" else client.style]
    assert {"edge-files", "edge-memory"} <= servers.keys()
    assert servers["edge-files"]["args"][-4:] == ["mcp", "files", "-c", "notes"]
    assert "other" in servers if client.style == "toml" else read["theme"] == "dark"
    assert file.with_name("settings.before-edge").read_text() == other, "the first copy stays"
    assert "edge-memory" not in file.with_name("settings.before-edge1").read_text()
    assert file.stat().st_mode & 0o077 == 0
    again = edge_verb("mcp", "install", name, "files", "-c", "notes")
    assert (again.code, "has it already" in again.out) == (0, True)
    file.write_text('[mcp_servers.edge-files]\ncommand = "mine"\n' if client.style == "toml" else "{ // mine\n}")
    assert edge_verb("mcp", "install", name, "files", "--yes").code == 2


def test_a_person_who_starts_a_server_is_told_on_stderr(
    edge_verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "argv", ["edge", "mcp", "files", "-c", "absent"])
    done = edge_verb("mcp", "files", "-c", "absent")  # no collection, so no server
    assert done.code == 2
    assert done.out == ""
    assert '"mcpServers"' in done.err
    assert '"absent"' in done.err
