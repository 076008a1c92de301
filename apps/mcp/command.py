"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from edge.apps.options import collection_option, configure, engine_options


@click.group()
def mcp() -> None:
    """Serve memory or files to an agent over stdio (Model Context Protocol)."""


@mcp.command()
@click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")
@click.option("--user-id", help="Whose memory is served; clients cannot leave it. `default` if no id is given.")
@click.option("--agent-id", help="Which agent's.")
@click.option("--run-id", help="Which session's.")
@engine_options
def memory(
    path: Path | None,
    user_id: str | None,
    agent_id: str | None,
    run_id: str | None,
    memory: str | None,
    runtime: str | None,
    threads: int | None,
) -> None:
    """Serve add_memory, search_memory, list_memories, update_memory and delete_memory."""
    from edge.apps.mcp.memory import memory_server
    from edge.apps.mcp.protocol import load_sdk
    from edge.apps.mcp.stdio import serve
    from edge.apps.memory.command import whose
    from edge.apps.memory.memory import Memory

    load_sdk()
    config = configure(memory=memory, runtime=runtime, threads=threads)
    with Memory(path, **whose(user_id, agent_id, run_id), config=config) as opened:
        serve(memory_server(opened), opened.budget)


@mcp.command()
@collection_option
@engine_options
def files(collection: Path | None, memory: str | None, runtime: str | None, threads: int | None) -> None:
    """Serve search, get and status of an indexed collection, which is only read."""
    from edge.apps.collection.collection import Collection
    from edge.apps.collection.place import locate
    from edge.apps.mcp.files import files_server
    from edge.apps.mcp.protocol import load_sdk
    from edge.apps.mcp.stdio import serve

    load_sdk()
    config = configure(memory=memory, runtime=runtime, threads=threads)
    with Collection(locate(collection), config=config, read_only=True) as opened:
        serve(files_server(opened), opened.budget)
