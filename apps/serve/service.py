"""`edge serve --install` and `--uninstall`: the file by which the system starts the server when its user logs in.

Sources: systemd.service(5) and systemd.syntax(7); launchd.plist(5).
"""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import platformdirs

from edge.apps.mcp.clients import program
from edge.control_characters import STEERING
from edge.errors import CapabilityError, InputError, StorageError
from edge.files.own_folder import make_folder
from edge.files.sealed import replace

UNIT = "edge-rag.service"
LABEL = "edge-rag.serve"


@dataclass(frozen=True, slots=True)
class Service:
    """A file for the system's own supervisor.

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
