"""The scope of a command of `edge memory`: its ids, its folder, and the memory that they name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import click

from edge.apps.memory.console import path_option
from edge.apps.memory.place import default_path, holds_memory
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.memory.served import ServedMemory
from edge.apps.options import Command, configure, json_option
from edge.apps.serve.connection import SEARCH, Unserved, connected, own_options
from edge.apps.troubles import told
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.apps.memory.memory import Memory

DEFAULT_USER = "default"
"""The user id if no id is given, since most machines have one user."""

_SETTINGS = ("memory", "runtime", "threads", "embedder", "reranker")

everyone_option = click.option("--everyone", is_flag=True, help="All users, agents and sessions: a backup.")


def whose(user_id: str | None, agent_id: str | None, run_id: str | None) -> dict[str, Any]:
    """The ids of a scope; the default user's if none is given."""
    if user_id is None and agent_id is None and run_id is None:
        user_id = DEFAULT_USER
    return {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}


def scope_options(command: Command) -> Command:
    """Adds `--user-id`, `--agent-id`, `--run-id`, `--path` and `--json`."""
    for option in (
        json_option,
        path_option,
        click.option("--run-id", help="Which session's memory."),
        click.option("--agent-id", help="Which agent's memory."),
        click.option("--user-id", help="Whose memory; `default` if no id is given."),
    ):
        command = option(command)
    return command


def opened_memory(
    options: dict[str, Any], *, everyone: bool = False, make: bool = False
) -> AbstractContextManager[Memory]:
    """Opens a memory as `memory_of` does, and prints unfinished work and damage to stderr at the end."""
    return told(memory_of(options, everyone=everyone, make=make))


def memory_of(options: dict[str, Any], *, everyone: bool = False, make: bool = False) -> Memory:
    """The memory that the common options name, bound to their scope; unbound for `everyone`. It is the server's where a
    verb has `--no-server`, that is not given, and a server serves the memory.

    Args:
        make: create the memory if there is none.
    """
    settings: dict[str, Any] = {name: options.get(name) for name in _SETTINGS}
    config = configure(**settings, no_server=bool(options.get("no_server", True)))
    given = tuple(options.get(name) for name in SCOPE_FIELDS)
    if everyone and any(given):
        raise InputError("--everyone means all users, agents and sessions; leave the ids out")
    place = options["path"] or default_path()
    if not make and not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    ids = {} if everyone else whose(*given)

    def alone() -> Memory:
        from edge.apps.memory.memory import Memory

        return Memory(place, **ids, config=config)

    try:
        server = connected(config, SEARCH, own_options(memory=options.get("memory"), threads=options.get("threads")))
    except Unserved:
        return alone()
    return cast("Memory", ServedMemory(server, place.expanduser().absolute(), ids, alone))
