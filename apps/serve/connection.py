"""`OwnServer`: the server of this user, asked over a Unix socket in a folder of the owner's; `connected` finds it for a
command, `started` starts one. The command line begins here, so nothing heavy is imported, not even Python's HTTP
client."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import stat
import struct
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from edge.apps.console import PYTHON, notice
from edge.config import Config
from edge.errors import CapabilityError, StorageError, as_storage_error
from edge.files.named_file import make_folder
from edge.interpreter import FORKED

_SOCKET = "serve.sock"
_LONGEST = 100
"""Bytes of a socket's path; systems allow 104 to 108."""

_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2
"""macOS's options that identify the process at the other end (<sys/un.h>)."""


def folder_path() -> Path:
    with warnings.catch_warnings():  # where the system names no such folder, the one it falls back to is checked
        warnings.simplefilter("ignore")
        return platformdirs.user_runtime_path("edge-rag", appauthor=False)


def socket_path() -> Path | None:
    """The server's socket, whether a server runs or not; None where the system has none. Its folder is made, for its
    owner only."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    folder = folder_path()
    with as_storage_error(f"{folder} cannot be made"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise StorageError(f"{folder} belongs to somebody else, so no socket is made there")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
    path = folder / _SOCKET
    return path if len(os.fsencode(path)) <= _LONGEST else None


def own_socket() -> Path | None:
    """The socket of a server that this user has started; None if there is none, or if anybody else could have put it
    there."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    folder = folder_path()
    path = folder / _SOCKET
    try:
        around, found = folder.lstat(), path.lstat()
    except OSError:
        return None
    own = os.getuid()
    private = stat.S_ISDIR(around.st_mode) and around.st_uid == own and not stat.S_IMODE(around.st_mode) & 0o077
    return path if private and stat.S_ISSOCK(found.st_mode) and found.st_uid == own else None


def peer_pid(connected: socket.socket) -> int | None:
    """The process at the other end of a Unix socket, as the system says; None if it is another user's, or is not
    known."""
    if hasattr(socket, "SO_PEERCRED"):  # Linux: pid, uid, gid
        pid, owner, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    elif sys.platform == "darwin":  # struct xucred of <sys/ucred.h>: version, uid, groups
        _, owner = struct.unpack_from("=2I", connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76))
        (pid,) = struct.unpack("i", connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))
    else:
        return None
    return int(pid) if owner == os.getuid() else None


def reach(path: Path, seconds: float = 2.0) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        made.connect(str(path))
    except BaseException:
        made.close()
        raise
    return made


def listen(path: Path) -> socket.socket:
    try:
        reach(path).close()
    except OSError:
        pass
    else:
        raise StorageError(f"a server of yours runs already and listens on {path}")
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise StorageError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    made.listen(128)
    return made


OWN = "/own"
"""Paths below it are answered over the Unix socket only."""

_HELLO_S = 1.0
_MORE_S = 30.0
_ENGINE = ("models_dir", "data", "runtime", "device", "device_memory")
SEARCH = (*_ENGINE, "reranker", "embedder", "mode", "threshold")
ASK = (*SEARCH, "llm", "llm_key", "llm_remote", "context", "gpu_layers")
MODELS = (*_ENGINE,)
"""Settings that results of a model depend on, besides those that a request names."""


PROGRAM = f"{__file__} {os.stat(__file__).st_mtime_ns}"
"""This installation, and when it was put there: a server that runs since before an upgrade is another program."""


class Unserved(Exception):
    """The server was not used. The text says why, in a few words."""


class Absent(Unserved):
    """No server runs."""


class Refused(Unserved):
    """The server refused the request with this `status`, and has changed nothing."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Lost(Unserved):
    """The server has ended, or did not answer in time. What was asked may have been done or not."""


def settings_of(config: Config) -> dict[str, str]:
    """The settings that two processes must share to get equal results."""
    values = {name: str(getattr(config, name)) for name in ASK if name != "data"}
    values["models_dir"] = str(Path(config.models_dir).expanduser().absolute()) if config.models_dir else ""
    values["data"] = str(platformdirs.user_data_path("edge-rag", appauthor=False))
    values["llm_key"] = _checksum(config.llm_key)
    return values


def compared(own: dict[str, str], other: dict[str, str], names: tuple[str, ...]) -> None:
    for name in names:
        if own[name] != other.get(name):
            there, here = other.get(name) or "the usual one", own[name] or "the usual one"
            said = "another one" if name == "llm_key" else f"{there}, not {here}"
            raise Unserved(f"its {name} is {said}")


class OwnServer:
    """A server of this user; `hello` is its description: `pid`, `url`, `settings`, `collections`, `memory`, ..."""

    def __init__(self) -> None:
        path = own_socket()
        if path is None:
            raise Absent("no server runs")
        self._path = path
        self.hello: dict[str, Any] = {"seconds": 0.0}
        try:
            self.hello = json.loads(self._answer("GET", OWN, bytearray(), _HELLO_S))
        except (OSError, ValueError) as error:
            raise Unserved(f"the server does not answer ({error})") from None

    def check(self, config: Config, names: tuple[str, ...]) -> None:
        """Raises `Unserved` if the server is another release, or has other values of these settings."""
        if self.hello.get("program") != PROGRAM:
            raise Unserved("the server was started from another installation, or before the program was changed")
        compared(settings_of(config), self.hello["settings"], names)

    def ask(self, path: str, content: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """The answer to a request. Raises `Refused`, `Lost` where no answer came, and `Unserved` where nothing was
        sent."""
        try:
            body = self._body(content)
            found: dict[str, Any] = json.loads(self._answer("POST", path, body, seconds or self._patience))
        except (OSError, ValueError) as error:
            raise Lost(f"the server ended before it answered ({error})") from None
        return found

    def events(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The events of an answer, each with its name. Raises as `ask` does, also after events."""
        body = self._body(content)
        try:
            with self._sent("POST", path, body, self._patience) as connected, connected.makefile("rb") as file:
                _read_head(file)
                name = ""
                for line in file:
                    if line.startswith(b"event: "):
                        name = line[7:].decode().strip()
                    elif line.startswith(b"data: "):
                        data = json.loads(line[6:])
                        if name == "error":
                            raise Refused(int(data["status"]), str(data["detail"]))
                        yield name, data
        except (OSError, ValueError) as error:
            raise Lost(f"the server ended before it had answered ({error})") from None

    @property
    def _patience(self) -> float:
        return float(self.hello["seconds"]) + _MORE_S

    def _body(self, content: dict[str, Any]) -> bytearray:
        body, most = bytearray(), self.hello["body"]
        for piece in json.JSONEncoder().iterencode(content):  # a request that is too large is not written to its end
            body += piece.encode()
            if len(body) > most:
                raise Unserved(f"the request has more than the {most:,} bytes that the server takes")
        return body

    def _answer(self, method: str, path: str, body: bytearray, seconds: float) -> bytes:
        with self._sent(method, path, body, seconds) as connected, connected.makefile("rb") as file:
            length = _read_head(file)
            found = file.read()
        if length is not None and len(found) != length:
            raise ConnectionResetError("a part of the answer is missing")
        return found

    def _sent(self, method: str, path: str, body: bytearray, seconds: float) -> socket.socket:
        """A connection over which a request was sent. With HTTP/1.0 the server ends it after its answer."""
        try:
            connected = reach(self._path, _HELLO_S)
        except OSError:
            raise Absent("no server runs") from None
        try:
            if peer_pid(connected) is None:
                raise Unserved("somebody else's process listens there")
            connected.settimeout(seconds)
            head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            body[:0] = head.encode()  # one message, without a second copy of the body
            connected.sendall(body)
        except BaseException:
            connected.close()
            raise
        return connected


def _read_head(file: Any) -> int | None:
    """Reads an answer's status and headers; returns the length of its body, if it says one."""
    words = file.readline().split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionResetError("the connection was closed")
    length = None
    for line in iter(file.readline, b""):
        if not line.strip():
            break
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    status = int(words[1])
    if status != 200:
        try:
            sentence = str(json.loads(file.read())["detail"])
        except (ValueError, KeyError, TypeError):
            sentence = f"HTTP {status}"
        raise Refused(status, sentence)
    return length


def _checksum(text: str) -> str:
    if not text:
        return ""
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()


IDLE_S = 600.0
"""A server that a command has started ends when it was not used for so long."""

_START_S = 60.0
_AUTO = ("--no-port", "--idle", f"{IDLE_S:g}")


def connected(config: Config, names: tuple[str, ...], alone: str = "") -> OwnServer:
    """The server, if it can be used. With `server = "auto"` one is started if there is none."""
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
    for name, value in given.items():
        if value:
            return f"--{name.replace('_', '-')} is about this process"
    return ""


def started(arguments: Sequence[str], folder: Path) -> tuple[OwnServer, str]:
    """A server in a process of its own, which outlives this one, and what it has printed."""
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
            [python, option, FORKED + code, "serve", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
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
    """A server for a command, with the user's own settings. Raises `Unserved` where it was not started, which is
    printed, or would not be used because of these settings."""
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
