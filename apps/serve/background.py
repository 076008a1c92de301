"""The server that a command uses: `connected` finds it, and `started` starts one in the background, for
`edge serve --background` and with the setting `server = "auto"`.

The command line begins with this module, too, so what only a start needs is imported there."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from edge.apps.console import PYTHON, notice
from edge.apps.serve.connection import Absent, OwnServer, Unserved, compared, settings_of, socket_path
from edge.config import Config
from edge.errors import CapabilityError, StorageError, as_storage_error
from edge.files.output_file import make_folder

IDLE_S = 600.0
"""A server that a command has started ends when it was not used for so long."""

_FORKED = "import os; os.fork() and os._exit(0)\n"
"""The server is no child of the command that starts it: it lives longer, and has a limit of its own."""

_START_S = 60.0
_AUTO = ("--no-port", "--idle", f"{IDLE_S:g}")


def connected(config: Config, names: tuple[str, ...], alone: str = "") -> OwnServer:
    """The server, if it can be used. With `server = "auto"` one is started if there is none.

    Args:
        names: settings that must be the same there.
        alone: why it is not to be used; empty if it is.

    Raises:
        Unserved: it is not to be used, or cannot be.
    """
    if alone:
        raise Unserved(alone)
    if not config.server:
        raise Unserved("it is switched off")
    try:
        found = OwnServer()
    except Absent:
        if config.server is True:
            raise
        found = begun(config, names)
    found.check(config, names)
    return found


def own_options(**given: Any) -> str:
    """The reason why a command works alone: the first of some options about the process itself that was given."""
    for name, value in given.items():
        if value:
            return f"--{name.replace('_', '-')} is about this process"
    return ""


def started(arguments: Sequence[str], folder: Path) -> tuple[OwnServer, str]:
    """A server in a process of its own, which outlives this one, and what it has printed.

    Args:
        arguments: of `edge serve`.
        folder: its working directory, whose `.edge/config.toml` it reads.

    Raises:
        CapabilityError: this system has no socket over which it could say that it serves.
        StorageError: it has ended, or does not serve within a time.
    """
    import select
    import signal
    import subprocess

    if socket_path() is None:
        raise CapabilityError(
            "this system has no socket of its owner's, over which a server in the background is found"
        )
    log = Path(platformdirs.user_log_dir("edge-rag", appauthor=False)) / "serve.log"
    with as_storage_error(f"{log} cannot be written"):
        make_folder(log.parent)
        log.unlink(missing_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    lives, held = os.pipe()  # its end tells that of the server
    with open(descriptor, "ab") as output, open(lives, "rb") as alive:
        python, option, code = PYTHON
        first = subprocess.Popen(
            [python, option, _FORKED + code, "serve", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True, pass_fds=[held],
        )  # fmt: skip
        os.close(held)
        first.wait()
        ends = time.monotonic() + _START_S
        while not select.select([alive], [], [], 0.02)[0]:
            with suppress(Unserved, ProcessLookupError):
                server = OwnServer()
                if os.getsid(server.hello["pid"]) == first.pid:
                    said = log.read_text("utf-8", "replace")
                    os.truncate(log, 0)  # it may have named a new token
                    return server, said
            if time.monotonic() > ends:
                os.killpg(first.pid, signal.SIGTERM)
                raise StorageError(f"the server does not answer {_START_S:g} seconds after its start")
    raise StorageError(log.read_text("utf-8", "replace").strip().removeprefix("edge: ") or "the server ended at once")


def begun(config: Config, names: tuple[str, ...]) -> OwnServer:
    """A server for a command, with the user's own settings. If it cannot be started, the reason is printed.

    Args:
        names: settings that must be the same there.

    Raises:
        Unserved: it has not been started, or would not be used because one of these settings is another one there.
    """
    home = Path.home()
    compared(settings_of(config), settings_of(Config.load(project=home / ".edge" / "config.toml")), names)
    try:
        if not all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
            raise CapabilityError("`server = \"auto\"` needs the server: pip install 'edge-rag[serve]'")
        return started(_AUTO, home)[0]
    except (CapabilityError, StorageError) as error:
        try:
            return OwnServer()  # two commands may have started one at once
        except Unserved:
            notice(f"no server was started: {error}")
            raise Unserved(str(error)) from None
