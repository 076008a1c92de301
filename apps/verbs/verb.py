"""`Verb`: what is asked, the work, and the settings that its result depends on; the verbs that are done here or in the
user's server. `do` does the work there where that can be used, and otherwise in this process.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from edge.apps.serve.connection import ASK as _ASK
from edge.apps.serve.connection import MODELS as _MODELS
from edge.apps.serve.connection import OWN, Lost, OwnServer, Refused, Unserved, connected
from edge.apps.serve.connection import SEARCH as _SEARCH
from edge.apps.verbs.options import RequestOptions
from edge.errors import StorageError

if TYPE_CHECKING:
    from edge.apps.verbs.home import Home, OwnHome
    from edge.apps.verbs.memories import OfMemory

_END_S = 10.0
"""If the server has not said within this time that it ends an answer, the command ends without the rest of it."""


class Listener(Protocol):
    """Hears of a result before it is whole."""

    def troubles(self, sentences: list[str]) -> None:
        """Takes unfinished work and damage of the collections that are read."""

    def text(self, piece: str) -> None:
        """Takes a piece of an answer's text."""


class Deaf:
    """A listener that waits for the whole result."""

    def troubles(self, sentences: list[str]) -> None:
        """Does nothing."""

    def text(self, piece: str) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb that the command line, the server and `edge.Client` share.

    Attributes:
        name: its words on the command line.
        kind: `module:class` of what is asked, a `RequestOptions`; the module is one of this package.
        work: `module:function`, called with a `Home`, the request and a `Listener`. It returns what is printed.
        settings: names of the settings that the result depends on.
        writes: whether a second call would change something again.
        streams: whether the answer comes in pieces.
    """

    name: str
    kind: str
    work: str
    settings: tuple[str, ...]
    writes: bool = False
    streams: bool = False

    @property
    def path(self) -> str:
        return f"{OWN}/{self.name.replace(' ', '/')}"

    @property
    def request(self) -> type[RequestOptions]:
        kind: type[RequestOptions] = _imported(self.kind)
        return kind

    def run(self, home: Home, asked: RequestOptions, listener: Listener) -> Any:
        return _imported(self.work)(home, asked, listener)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"edge.apps.verbs.{module}"), attribute)


@dataclass(frozen=True, slots=True)
class Done:
    result: Any
    server: str
    seconds: float


def do(verb: Verb, asked: RequestOptions, home: OwnHome, *, alone: str = "", listener: Listener | None = None) -> Done:
    """Does a verb.

    Raises:
        StorageError: the server has ended, and the answer is not finished or it is not known whether something was
            written.
        Others as the verb's work.
    """
    started = time.perf_counter()
    heard = listener or Deaf()
    try:
        connection = connected(home.config, verb.settings, alone)
        result = served(connection, verb, asked, heard)
        server = f"used: process {connection.hello['pid']}"
    except Unserved as reason:
        with home:
            result = verb.run(home, asked, heard)
        server = f"not used: {reason}"
    return Done(result, server, time.perf_counter() - started)


def served(connection: OwnServer, verb: Verb, asked: RequestOptions, listener: Listener) -> Any:
    if verb.streams:
        return _Streamed(connection, verb, asked, listener).result()
    try:
        return connection.ask(verb.path, {"request": asked.to_json()})
    except Unserved as reason:
        unsure = isinstance(reason, Lost) or (isinstance(reason, Refused) and reason.status >= 500)
        if unsure and verb.writes:
            raise StorageError(
                f"whether this was written is not known: {reason}; `edge memory list` shows what is remembered"
            ) from None
        raise


class _Streamed:
    """A result that the server sends in pieces."""

    def __init__(self, connection: OwnServer, verb: Verb, asked: RequestOptions, listener: Listener) -> None:
        self._connection = connection
        self._path = verb.path
        self._asked = {"request": asked.to_json(), "name": os.urandom(16).hex(), "stream": True}
        self._listener = listener
        self._begun = False

    def result(self) -> Any:
        """The whole result. The first Ctrl-C ends it where it is. Raises as `served`."""
        troubles: list[str] = []
        try:
            with interruptible(self._cancel):
                for name, data in self._connection.events(self._path, self._asked):
                    if name == "troubles":
                        troubles = data["sentences"]
                    elif name in ("text", "answer"):
                        if not self._begun:
                            self._listener.troubles(troubles)
                        self._begun = True
                        if name == "answer":
                            return data
                        self._listener.text(data["text"])
            raise Lost("the server ended before it had answered")
        except Unserved as reason:
            if not self._begun:
                raise
            raise StorageError(f"the answer is not finished: {reason}") from None

    def _cancel(self) -> None:
        """Ends the answer before its next token; what is written still arrives. Raises `KeyboardInterrupt` where the
        server has not begun to answer or cannot be told: the answer then ends with the connection."""
        try:
            done = self._connection.ask(f"{OWN}/end", {"name": self._asked["name"]}, _END_S)
        except Unserved:
            raise KeyboardInterrupt from None
        if not done["ended"] and not self._begun:
            raise KeyboardInterrupt


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """A context in which the first Ctrl-C calls `cancel`, which ends the answer before its next token. The second one
    raises `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


SEARCH = Verb("search", "requests:Search", "work:search", _SEARCH)
ASK = Verb("ask", "requests:Ask", "work:ask", _ASK, streams=True)
RERANK = Verb("rerank", "requests:Rerank", "work:rerank", _MODELS)
EMBED = Verb("embed", "requests:Embed", "work:embed", _MODELS)

VERBS = (SEARCH, ASK, RERANK, EMBED)


def of_memory(kind: type[OfMemory]) -> Verb:
    """The verb of a memory that a class of `edge.apps.verbs.memories` describes."""
    return Verb(f"memory {kind.verb}", f"memories:{kind.__name__}", "memories:remembered", _SEARCH, kind.writes)
