"""Programs that talk to MCP servers: the files of their settings, and what stands there about a server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from edge.apps.console import PYTHON


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """A program that talks to MCP servers. `style`: the key of the servers in its settings, or `toml`; `file`: the
    user's settings, in `folder` among the settings of programs if that is given; `project`: those of a project;
    `skills`, `hooks`: of the user and of a project."""

    name: str
    style: str
    file: str
    project: str = ""
    skills: tuple[str, str] | None = None
    hooks: tuple[str, str] | None = None
    folder: str = ""

    def settings(self, *, project: bool = False) -> Path:
        if project or not self.folder:
            return Path(self.project if project else self.file).expanduser()
        return platformdirs.user_config_path(self.folder, appauthor=False, roaming=True) / self.file


CLIENTS = (
    AgentProgram(
        "claude-code", "mcpServers", "~/.claude.json", ".mcp.json", ("~/.claude/skills", ".claude/skills"),
        ("~/.claude/settings.json", ".claude/settings.json"),
    ),
    AgentProgram(
        "codex", "toml", "~/.codex/config.toml", ".codex/config.toml", ("~/.agents/skills", ".agents/skills")
    ),
    AgentProgram(
        "cursor", "mcpServers", "~/.cursor/mcp.json", ".cursor/mcp.json", ("~/.cursor/skills", ".cursor/skills")
    ),
    AgentProgram(
        "gemini", "mcpServers", "~/.gemini/settings.json", ".gemini/settings.json",
        ("~/.gemini/skills", ".gemini/skills"),
    ),
    AgentProgram(
        "opencode", "mcp", "~/.config/opencode/opencode.json", "opencode.json",
        ("~/.config/opencode/skills", ".opencode/skills"),
    ),
    AgentProgram(
        "vscode", "servers", "User/mcp.json", ".vscode/mcp.json", ("~/.copilot/skills", ".github/skills"), folder="Code"
    ),
    AgentProgram("claude-desktop", "mcpServers", "claude_desktop_config.json", folder="Claude"),
    AgentProgram("windsurf", "mcpServers", "~/.codeium/windsurf/mcp_config.json"),
    AgentProgram("zed", "context_servers", "~/.config/zed/settings.json"),
)  # fmt: skip
"""Each from its maker's documents, as they were in November 2026."""


def client_named(name: str) -> AgentProgram:
    return next(client for client in CLIENTS if client.name == name)


def entries(client: AgentProgram, servers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    command, *first = program()
    found: dict[str, Any] = {}
    for name, arguments in servers.items():
        entry: dict[str, Any] = {"command": command, "args": [*first, *arguments]}
        if client.style == "mcp":
            entry = {"type": "local", "command": [command, *first, *arguments], "enabled": True}
        found[name] = {"type": "stdio", **entry} if client.style == "servers" else entry
    return found


def configuration(client: AgentProgram, servers: Mapping[str, Sequence[str]]) -> str:
    found = entries(client, servers)
    if client.style == "toml":
        return "\n\n".join(
            "\n".join(
                [
                    f"[mcp_servers.{name}]",
                    *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()),
                ]
            )
            for name, entry in found.items()
        )
    return json.dumps({client.style: found}, indent=2, ensure_ascii=False)


def program() -> list[str]:
    found = shutil.which("edge")
    return [found] if found else list(PYTHON)
