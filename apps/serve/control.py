"""`edge serve --status`, `--stop`, `--install` and `--uninstall`: what runs, its end, and its start at each login."""

from __future__ import annotations

import os
import plistlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import platformdirs

from edge.apps.mcp.clients import program
from edge.apps.serve.connection import OWN, Connection, Unserved
from edge.apps.serve.place import own_socket, peer_pid, reach
from edge.config import format_size
from edge.errors import CapabilityError, InputError, StorageError
from edge.files.own_folder import make_folder
from edge.files.sealed import replace
from edge.text.control_characters import STEERING

_END_S = 30.0
"""A server gives its requests a few seconds, then closes what it holds (`limits.GRACE_S`, `limits.LEAVE_S`)."""


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


UNIT = "edge-rag.service"
LABEL = "edge-rag.serve"


@dataclass(frozen=True, slots=True)
class Service:
    """A file for the system's own supervisor: systemd.service(5) with systemd.syntax(7), or launchd.plist(5).

    Attributes:
        begin, end: commands with which the user has it start the server now and at each login, or no longer.
    """

    path: Path
    text: bytes
    begin: tuple[str, ...]
    end: tuple[str, ...]


def install(arguments: Sequence[str]) -> int:
    """Writes the file and prints it; starts nothing.

    Args:
        arguments: of `edge serve`.

    Raises:
        InputError: another file lies there.
        StorageError: it cannot be written.
    """
    service = service_for([*program(), "serve", *arguments])
    try:
        found = service.path.read_bytes() if service.path.exists() else None
    except OSError as error:
        raise StorageError(f"{service.path} cannot be read: {error.strerror}") from error
    if found is not None and found != service.text:
        raise InputError(f"{service.path} is there and says something else; `edge serve --uninstall` removes it")
    try:
        make_folder(service.path.parent)
    except OSError as error:
        raise StorageError(f"{service.path.parent} cannot be made: {error.strerror}") from error
    replace(service.path, service.text)
    click.echo(f"# {service.path}\n{service.text.decode()}")
    click.echo("Nothing was started. To start the server now and whenever you log in:", err=True)
    for line in service.begin:
        click.echo(f"  {line}", err=True)
    return 0


def uninstall() -> int:
    """Removes the file; returns the exit code: 1 if there is none.

    Raises:
        StorageError: it cannot be removed.
    """
    service = service_for([*program(), "serve"])
    if not service.path.exists():
        click.echo(f"there is no {service.path}")
        return 1
    try:
        service.path.unlink()
    except OSError as error:
        raise StorageError(f"{service.path} cannot be removed: {error.strerror}") from error
    click.echo(f"{service.path} is removed")
    click.echo("A server that runs goes on. To end it, and to forget the service:", err=True)
    for line in service.end:
        click.echo(f"  {line}", err=True)
    return 0


def service_for(command: Sequence[str], platform: str = sys.platform) -> Service:
    """The service that runs a command.

    Raises:
        CapabilityError: the system has no supervisor that we know.
        InputError: an argument cannot be written into such a file.
    """
    for argument in command:
        if STEERING.search(argument) or "\n" in argument:
            raise InputError(f"{argument!a} cannot stand in the file of a service")
    if platform == "darwin":
        path = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        domain = f"gui/{os.getuid()}"
        begin: tuple[str, ...] = (f"launchctl bootstrap {domain} '{path}'",)
        return Service(path, _agent(command), begin, (f"launchctl bootout {domain}/{LABEL}",))
    if platform.startswith("linux"):
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        begin = ("systemctl --user daemon-reload", f"systemctl --user enable --now {UNIT}")
        end = (f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload")
        return Service(settings / "systemd" / "user" / UNIT, _unit(command), begin, end)
    raise CapabilityError("services are made for systemd (Linux) and launchd (macOS) only")


def _unit(command: Sequence[str]) -> bytes:
    return f"""[Unit]
Description=edge-rag: search, answers and memory for the programs of this user

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, command))}
Restart=on-failure
RestartSec=5
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
""".encode()


def _quoted(argument: str) -> str:
    """An argument as systemd reads it: `%` and `$` stand for themselves when doubled."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _agent(command: Sequence[str]) -> bytes:
    log = Path(platformdirs.user_log_dir("edge-rag", appauthor=False)) / "serve.log"
    return plistlib.dumps({
        "Label": LABEL,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "StandardErrorPath": str(log),
    })  # fmt: skip
