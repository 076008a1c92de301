"""`edge serve --status` and `--stop`: what runs, and its end."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click

from edge.apps.serve.connection import OWN, Connection, Unserved
from edge.apps.serve.place import own_socket, peer_pid, reach
from edge.config import format_size
from edge.errors import StorageError

_END_S = 30.0
"""A server gives its requests five seconds, then closes what it holds."""


def running_pid() -> int | None:
    """The process that listens on this user's socket, as the system says; None if there is none. It need not answer."""
    path = own_socket()
    if path is None:
        return None
    try:
        connected = reach(path)
    except OSError:
        return None
    with connected:
        return peer_pid(connected)


def status() -> int:
    """Prints what runs; returns the exit code: 0 if a server runs, 1 if none does."""
    pid = running_pid()
    if pid is None:
        click.echo("no server of yours runs")
        return 1
    try:
        state = Connection().ask(f"{OWN}/status", {})
    except Unserved as reason:
        click.echo(f"process     {pid}, which does not answer ({reason})")
        return 0
    for line in _described(state):
        click.echo(line)
    return 0


def stop() -> int:
    """Ends the server and waits for its end; returns the exit code: 0 if it has ended, 1 if none ran.

    Raises:
        StorageError: it has not ended after a time.
    """
    pid = running_pid()
    if pid is None:
        click.echo("no server of yours runs")
        return 1
    os.kill(pid, signal.SIGTERM)
    ends = time.monotonic() + _END_S
    while _lives(pid):
        if time.monotonic() > ends:
            raise StorageError(f"process {pid} was told to end and has not done so within {_END_S:g} seconds")
        time.sleep(0.02)
    click.echo(f"the server has ended (process {pid})")
    return 0


def _described(state: dict[str, Any]) -> list[str]:
    memory, minutes = state["memory"], int(time.time() - state["started"]) // 60
    hours, minutes = divmod(minutes, 60)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(state["started"]))
    lines = [
        f"process     {state['pid']}, since {since} ({hours} h {minutes} min)",
        f"address     {state['url'] or 'unknown'}",
        f"memory      {format_size(memory['resident'])} of {format_size(memory['limit'])}",
        f"requests    {state['requests']['served']:,} served, {state['requests']['working']} at work",
    ]
    lines += [f"model       {model['name']} ({format_size(model['nbytes'])})" for model in state["models"]]
    for collection in state["collections"]:
        empty = "" if collection["exists"] else "  (empty)"
        lines.append(f"collection  {collection['name']}  {collection['path']}{empty}")
    return [*lines, f"memories    {state['memory_path']}"]


def _lives(pid: int) -> bool:
    """Whether a process has not ended. One that its parent has not asked about yet has."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
