"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine."""

from __future__ import annotations

import difflib
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click
import platformdirs

from edge.apps.console import PYTHON
from edge.apps.options import CommandGroup, Setup, collections_option, setup_options
from edge.apps.verbs.memories import OfMemory
from edge.errors import InputError
from edge.files.input_file import read_small
from edge.files.sealed import replace
from edge.text.control_characters import escaped


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """A program that talks to MCP servers."""

    name: str
    place: str
    style: str
    file: str = ""


CLIENTS = (
    AgentProgram("claude-code", "run this once", "claude"),
    AgentProgram(
        "claude-desktop", "claude_desktop_config.json (Settings > Developer > Edit Config)", "mcpServers",
        str(platformdirs.user_config_path("Claude", appauthor=False, roaming=True) / "claude_desktop_config.json"),
    ),
    AgentProgram("cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in a project", "mcpServers", "~/.cursor/mcp.json"),
    AgentProgram("vscode", ".vscode/mcp.json", "servers", ".vscode/mcp.json"),
    AgentProgram(
        "windsurf", "~/.codeium/windsurf/mcp_config.json", "mcpServers", "~/.codeium/windsurf/mcp_config.json"
    ),
    AgentProgram("zed", "settings.json of Zed", "context_servers", "~/.config/zed/settings.json"),
    AgentProgram("gemini", "~/.gemini/settings.json", "mcpServers", "~/.gemini/settings.json"),
    AgentProgram("codex", "~/.codex/config.toml", "toml", "~/.codex/config.toml"),
)  # fmt: skip


def client_named(name: str) -> AgentProgram:
    """The client of this name, one of `CLIENTS`."""
    return next(client for client in CLIENTS if client.name == name)


def configuration(client: AgentProgram, server: str, arguments: Sequence[str]) -> str:
    """The text to paste."""
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


def with_server(client: AgentProgram, server: str, arguments: Sequence[str], text: str) -> str:
    """The text of the client's file with the server in it. The arguments are those of `configuration`."""
    more = configuration(client, server, arguments)
    if client.style == "toml":
        if f"[mcp_servers.{server}]" in text:
            if more in text:
                return text
            raise InputError(f"{client.file} has another {server} already: change it there")
        return f"{text.rstrip()}\n\n{more}\n".lstrip()
    try:
        document = json.loads(text or "{}")
        document.setdefault(client.style, {}).update(json.loads(more)[client.style])
    except (ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{client.file} is no plain JSON object, perhaps it has comments: paste what `edge mcp config` prints"
        ) from None
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def program() -> list[str]:
    """The command that starts `edge`, by its full path, because clients do not search the same folders as a shell."""
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
@collections_option
@setup_options()
def files(collections: tuple[str, ...], setup: Setup) -> None:
    """Serve search, get, get_documents and status of indexed collections, without changing them."""
    from edge.apps.collection.collection import Together
    from edge.apps.mcp.protocol import load_sdk, serve
    from edge.apps.mcp.tools import files_server

    load_sdk()
    _greet("files")
    config = setup.config()
    with Together.opened(collections, config) as opened:
        opened.first.check_room("searching")
        serve(files_server(opened), opened.budget)


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
        click.echo(configuration(client_named(client), f"edge-{server}", ["mcp", server, *options]))
        return
    for known in CLIENTS:
        click.echo(f"# {known.name}: {known.place}")
        click.echo(configuration(known, f"edge-{server}", ["mcp", server, *options]) + "\n")


@mcp.command(context_settings={"ignore_unknown_options": True})
@click.argument("client", type=click.Choice([client.name for client in CLIENTS if client.file]))
@click.argument("server", type=click.Choice(["files", "memory"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
@click.option("--yes", is_flag=True, help="Write without asking.")
def install(client: str, server: str, options: tuple[str, ...], yes: bool) -> int:
    """Write SERVER into the configuration of CLIENT. The change is shown first, and the old file is kept beside it.

    OPTIONS are those of `edge mcp SERVER`, such as `-c notes`. Exit code 1 if you say no.
    """
    _check(server, options)
    known = client_named(client)
    file = Path(known.file).expanduser().resolve()
    try:
        before = read_small(file).decode("utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    after = with_server(known, f"edge-{server}", ["mcp", server, *options], before)
    if after == before:
        click.echo(f"{file} has it already")
        return 0
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), lineterm=""):
        click.echo(escaped(line))
    if not yes and not click.confirm("Write this?", err=True):
        return 1
    if before:
        names = (f"{file.name}.before-edge{number or ''}" for number in count())
        copy = next(path for path in map(file.with_name, names) if not path.exists())
        replace(copy, before.encode(), private=True)
        click.echo(escaped(f"the old file is in {copy}"), err=True)
    replace(file, after.encode(), private=True)
    click.echo(escaped(f"{file} is written; start {client} again"), err=True)
    return 0


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
            + configuration(client_named("claude-desktop"), f"edge-{server}", ["mcp", *own])
            + "\n",
            err=True,
        )
