"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from edge.apps.mcp.clients import CLIENTS, client_named, configuration
from edge.apps.options import CommandGroup, Setup, collections_option, setup_options
from edge.apps.verbs.memories import OfMemory


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
