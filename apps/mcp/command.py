"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine; and the programs that talk to such
servers, with the files of their settings."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import platformdirs

from edge.apps.console import PYTHON
from edge.apps.options import CommandGroup, Setup, collections_option, setup_options
from edge.apps.verbs.memories import OfMemory


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


@click.group(cls=CommandGroup)
def mcp() -> None:
    """Serve memory or files to an agent over stdio (Model Context Protocol)."""


@mcp.command()
@OfMemory.add_to
@setup_options()
def memory(options: OfMemory, setup: Setup) -> None:
    """Serve the tools of a memory: add, search, list, update, supersede and delete memories, and their history."""
    from edge.apps.mcp.protocol import load_sdk, serve
    from edge.apps.mcp.tools import memory_server
    from edge.apps.memory.command import whose
    from edge.apps.memory.memory import Memory

    load_sdk()
    _greet("memory")
    config = setup.config()
    with Memory(options.path, **whose(options), config=config) as opened:
        opened.check_room()
        serve(memory_server(opened), opened.budget)


@mcp.command()
@click.option(
    "--here", is_flag=True, help="Serve the project that the server is started in, up to date at each search."
)
@collections_option
@setup_options()
def files(here: bool, collections: tuple[str, ...], setup: Setup) -> None:
    """Serve search, get, get_documents and status of indexed collections, without changing them."""
    from edge.apps.collection.collection import Together
    from edge.apps.collection.project import refresh
    from edge.apps.collection.registry import project_collection, project_root
    from edge.apps.mcp.protocol import load_sdk, serve
    from edge.apps.mcp.tools import files_server

    load_sdk()
    _greet("files")
    config = setup.config()
    root = project_root(collections) if here else ""
    if root:
        refresh(root, "", config)
    places = {"": str(project_collection(root))} if root else collections
    with Together.opened(places, config) as opened:
        opened.first.check_room("searching")
        serve(files_server(opened, root), opened.budget)


@mcp.command(context_settings={"ignore_unknown_options": True})
@click.argument("server", type=click.Choice(["files", "memory"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
@click.option("--client", type=click.Choice([client.name for client in CLIENTS]), help="Print it for this client only.")
def config(server: str, options: tuple[str, ...], client: str | None) -> None:
    """Print the configuration of SERVER, ready to paste: for every known client, or for one.

    OPTIONS are those of `edge mcp SERVER`, such as `-c notes`.
    """
    _check(server, options)
    if client is not None:
        click.echo(configuration(client_named(client), {f"edge-{server}": ["mcp", server, *options]}))
        return
    for known in CLIENTS:
        project = f", or {known.project} in a project" if known.project else ""
        click.echo(f"# {known.name}: {known.settings()}{project}")
        click.echo(configuration(known, {f"edge-{server}": ["mcp", server, *options]}) + "\n")


def _check(server: str, options: Sequence[str]) -> None:
    """Refuses options that the server would refuse when the client starts it."""
    (memory if server == "memory" else files).make_context(server, list(options), click.get_current_context().parent)


def _greet(server: str) -> None:
    """Explains the server on stderr to a user that starts it by hand. Stdout belongs to the protocol."""
    if sys.stdin.isatty():
        own = sys.argv[sys.argv.index("mcp") + 1 :] if "mcp" in sys.argv else []
        click.echo(
            f"edge: this server talks to an MCP client on stdin and stdout; Ctrl-C ends it. A client is told of it by "
            f"(others: `edge mcp config {server}`):\n\n"
            + configuration(client_named("claude-desktop"), {f"edge-{server}": ["mcp", *own]})
            + "\n",
            err=True,
        )
