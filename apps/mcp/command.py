"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edge.apps.mcp.clients import CLIENTS, client_named, configuration
from edge.apps.memory.console import path_option
from edge.apps.options import CommandGroup, Setup, collections_option, setup_options


@click.group(cls=CommandGroup)
def mcp() -> None:
    """Serve memory or files to an agent over stdio (Model Context Protocol)."""


@mcp.command()
@path_option
@click.option("--user-id", help="User whose memory alone is served; `default` if no id is given.")
@click.option("--agent-id", help="Agent whose memory is served.")
@click.option("--run-id", help="Session whose memory is served.")
@setup_options()
def memory(
    path: Path | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    setup: Setup,
) -> None:
    """Serve add_memory, search_memory, list_memories, update_memory and delete_memory."""
    from edge.apps.mcp.memory import memory_server
    from edge.apps.mcp.protocol import load_sdk
    from edge.apps.mcp.stdio import serve
    from edge.apps.memory.console import whose
    from edge.apps.memory.memory import Memory

    load_sdk()
    _greet("memory")
    config = setup.config()
    with Memory(path, **whose(user_id, agent_id, run_id), config=config) as opened:
        opened.check_room()
        serve(memory_server(opened), opened.budget)


@mcp.command()
@collections_option
@setup_options()
def files(collections: tuple[str, ...], setup: Setup) -> None:
    """Serve search, get, get_documents and status of indexed collections, without changing them."""
    from edge.apps.collection.together import Together
    from edge.apps.mcp.files import files_server
    from edge.apps.mcp.protocol import load_sdk
    from edge.apps.mcp.stdio import serve

    load_sdk()
    _greet("files")
    config = setup.config()
    with Together.opened(collections, config) as opened:
        opened.check_room()
        serve(files_server(opened), opened.budget)


@mcp.command(context_settings={"ignore_unknown_options": True})
@click.argument("server", type=click.Choice(["files", "memory"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
@click.option("--client", type=click.Choice([client.name for client in CLIENTS]), help="Print it for this client only.")
def config(server: str, options: tuple[str, ...], client: str | None) -> None:
    """Print the configuration of SERVER, ready to paste: for every known client, or for one.

    OPTIONS are those of `edge mcp SERVER`, such as `-c notes`.
    """
    if client is not None:
        click.echo(configuration(client_named(client), f"edge-{server}", ["mcp", server, *options]))
        return
    for known in CLIENTS:
        click.echo(f"# {known.name}: {known.place}")
        click.echo(configuration(known, f"edge-{server}", ["mcp", server, *options]) + "\n")


def _greet(server: str) -> None:
    """Explains the server on stderr to a user who starts it by hand. Stdout belongs to the protocol."""
    if sys.stdin.isatty():
        click.echo(
            f"edge: this server talks to an MCP client on stdin and stdout; Ctrl-C ends it. A client is told of it by "
            f"(others: `edge mcp config {server}`):\n\n"
            + configuration(client_named("claude-desktop"), f"edge-{server}", ["mcp", *_own_arguments()])
            + "\n",
            err=True,
        )


def _own_arguments() -> list[str]:
    """The arguments after `edge mcp` in the command line of this server."""
    return sys.argv[sys.argv.index("mcp") + 1 :] if "mcp" in sys.argv else []
