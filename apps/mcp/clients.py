"""Configuration of MCP clients for our servers: for each client, the text to paste and its file."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Client:
    """A program that talks to MCP servers.

    Attributes:
        name: the name that `--client` accepts.
        place: the file, or the action, that adds a server to the client.
        style: the format of the text.
    """

    name: str
    place: str
    style: str


CLIENTS = (
    Client("claude-code", "run this once", "claude"),
    Client("claude-desktop", "claude_desktop_config.json (Settings > Developer > Edit Config)", "mcpServers"),
    Client("cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in a project", "mcpServers"),
    Client("vscode", ".vscode/mcp.json", "servers"),
    Client("windsurf", "~/.codeium/windsurf/mcp_config.json", "mcpServers"),
    Client("zed", "settings.json of Zed", "context_servers"),
    Client("gemini", "~/.gemini/settings.json", "mcpServers"),
    Client("codex", "~/.codex/config.toml", "toml"),
)


def client_named(name: str) -> Client:
    """The client of this name, one of `CLIENTS`."""
    return next(client for client in CLIENTS if client.name == name)


def configuration(client: Client, server: str, arguments: Sequence[str]) -> str:
    """The text to paste.

    Args:
        server: the client's name for the server, such as `edge-files`.
        arguments: the command line after `edge`.
    """
    command, *first = program()
    arguments = [*first, *arguments]
    if client.style == "claude":
        return f"claude mcp add {server} -- {shlex.join([command, *arguments])}"
    if client.style == "toml":
        return f"[mcp_servers.{server}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(arguments)}"
    entry: dict[str, object] = {"command": command, "args": arguments}
    if client.style == "servers":
        entry = {"type": "stdio", **entry}
    return json.dumps({client.style: {server: entry}}, indent=2, ensure_ascii=False)


def program() -> list[str]:
    """The command that starts `edge`, by its full path, because clients do not search the same folders as a shell."""
    found = shutil.which("edge")
    return [found] if found else [sys.executable, "-c", "from edge.apps.cli import main; main()"]
