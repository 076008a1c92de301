"""`Connection`: how the owner's programs ask the server of this machine, over its Unix socket.

The command line begins with this, so it imports nothing heavy: not even Python's HTTP client, whose libraries for mail
and encryption take longer to import than an answer takes to come.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.apps.serve.place import is_own, own_socket, reach
from edge.config import Config

OWN = "/own"
"""Paths below it are answered over the Unix socket only."""

_HELLO_S = 1.0
"""A server that does not even say its name within this time is not asked for more."""

_MORE_S = 30.0
"""How much longer than its own bound on a request a server is waited for."""

_ENGINE = ("models_dir", "data", "runtime", "device", "device_memory")
SEARCH = (*_ENGINE, "reranker", "embedder", "mode", "threshold")
"""Settings that results of a search depend on."""

ASK = (*SEARCH, "llm", "llm_key", "llm_remote", "context")
"""Settings that an answer depends on."""

MODELS = (*_ENGINE,)
"""Settings that results of a model depend on, besides those that a request names."""


def _program() -> str:
    """This installation, and when it was put there: a server that runs since before an upgrade is another program."""
    return f"{__file__} {os.stat(__file__).st_mtime_ns}"


PROGRAM = _program()


class Unserved(Exception):
    """The server was not used. The text says why, in a few words."""


class Refused(Unserved):
    """The server refused the request, and has changed nothing.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Lost(Unserved):
    """The server has ended, or did not answer in time. What was asked may have been done or not."""


def settings_of(config: Config) -> dict[str, str]:
    """What two processes must agree upon to get equal results."""
    import platformdirs

    named = (
        "reranker",
        "embedder",
        "mode",
        "threshold",
        "runtime",
        "device",
        "device_memory",
        "llm",
        "context",
        "llm_remote",
    )
    values = {name: str(getattr(config, name)) for name in named}
    values["models_dir"] = str(Path(config.models_dir).expanduser().absolute()) if config.models_dir else ""
    values["data"] = str(platformdirs.user_data_path("edge-rag", appauthor=False))
    values["llm_key"] = _checksum(config.llm_key)
    return values


class Connection:
    """A server of this user that answers.

    Attributes:
        hello: what it says of itself: `pid`, `url`, `settings`, `collections`, `memory`, ...
    """

    def __init__(self) -> None:
        """Finds the server.

        Raises:
            Unserved: there is none, or it does not answer at once.
        """
        path = own_socket()
        if path is None:
            raise Unserved("no server runs")
        self._path = path
        self.hello: dict[str, Any] = {"seconds": 0.0}
        try:
            self.hello = json.loads(self._answer("GET", OWN, bytearray(), _HELLO_S))
        except (OSError, ValueError) as error:
            raise Unserved(f"the server does not answer ({error})") from None

    def check(self, config: Config, names: tuple[str, ...]) -> None:
        """
        Raises:
            Unserved: the server is another release, or one of these settings is another one there.
        """
        if self.hello.get("program") != PROGRAM:
            raise Unserved("the server was started from another installation, or before the program was changed")
        own, other = settings_of(config), self.hello["settings"]
        for name in names:
            if own[name] != other.get(name):
                there, here = other.get(name) or "the usual one", own[name] or "the usual one"
                said = "another one" if name == "llm_key" else f"{there}, not {here}"
                raise Unserved(f"its {name} is {said}")

    def ask(self, path: str, content: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """The answer to a request.

        Args:
            seconds: how long the answer is waited for; if not given, longer than the server works on a request.

        Raises:
            Refused: the server does not do it.
            Lost: there came no answer.
            Unserved: nothing was sent.
        """
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
        """A connection over which a request was sent. Its head is put before `body`. With HTTP/1.0 the server ends it
        after its answer."""
        try:
            connected = reach(self._path, _HELLO_S)
        except OSError:
            raise Unserved("no server runs") from None
        try:
            if not is_own(connected):
                raise Unserved("somebody else's process listens there")
            connected.settimeout(seconds)
            head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            body[:0] = head.encode()  # one message, without a second copy of the body
            connected.sendall(body)
        except BaseException:
            connected.close()
            raise
        return connected


def connected(config: Config, names: tuple[str, ...], alone: str = "") -> Connection:
    """The server, if it can be used.

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
    found = Connection()
    found.check(config, names)
    return found


def own_options(**given: Any) -> str:
    """Why a command works alone: the first of some options that was given, which are about the process itself."""
    for name, value in given.items():
        if value:
            return f"--{name.replace('_', '-')} is about this process"
    return ""


def _read_head(file: Any) -> int | None:
    """Reads the status and the headers of an answer; returns the length of its body, if it says one.

    Raises:
        Refused: the status is none of success.
        OSError: this is no answer.
    """
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
