"""The configuration of MCP clients, ready to paste."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from edge.apps.mcp.command import CLIENTS, configuration


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_gets_what_it_reads(client: Any) -> None:
    text = configuration(client, {"edge-files": ["mcp", "files", "-c", 'my "notes" \U0001f980']})
    read: Any = tomllib.loads(text) if client.style == "toml" else json.loads(text)
    (servers,) = read.values()
    entry = servers["edge-files"]
    command = entry["command"] if client.style == "mcp" else [entry["command"], *entry["args"]]
    assert command[-4:] == ["mcp", "files", "-c", 'my "notes" \U0001f980']
    assert command[0]


def test_the_command_prints_one_or_all(edge_verb: Callable[..., Any]) -> None:
    done = edge_verb("mcp", "config", "files", "--client", "cursor", "-c", "notes")
    assert done.code == 0
    assert json.loads(done.out)["mcpServers"]["edge-files"]["args"][-4:] == ["mcp", "files", "-c", "notes"]
    every = edge_verb("mcp", "config", "memory").out
    assert all(f"# {client.name}: " in every for client in CLIENTS)
    assert edge_verb("mcp", "config", "files", "--client", "nobody").code == 2


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
