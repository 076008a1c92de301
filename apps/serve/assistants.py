"""Assistants that the server holds: opened when they are first asked for, closed when no request uses them.

Things are opened one at a time: who waits goes on waiting only as long as the request's result is wanted.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.errors import BudgetExceeded
from edge.scheduling.urgency import current_urgency

_LOOK_S = 0.1
"""Seconds between looks whether the request was withdrawn."""


@contextmanager
def patiently(lock: threading.Lock) -> Iterator[None]:
    """Holds a lock that another thread may hold for long.

    Raises:
        Withdrawn, DeadlinePassed: nobody waits for this request's result any more.
    """
    urgency = current_urgency()
    while not lock.acquire(timeout=_LOOK_S):
        urgency.check()
    try:
        yield
    finally:
        lock.release()


class Turns:
    """One thread at a time opens the same thing; different things are opened at once. Thread-safe."""

    def __init__(self) -> None:
        self._locks: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._looking = threading.Lock()  # two threads that find no lock of a path must not make two

    @contextmanager
    def turn(self, of: Hashable) -> Iterator[None]:
        """Inside the block, no other thread has a turn of the same thing. Raises as `patiently` does."""
        with self._looking:
            lock = self._locks[of]
        with patiently(lock):
            yield


MOST = 8
"""Open assistants. Of those that no request uses, the one whose last use is longest ago is closed first."""


@dataclass(eq=False, slots=True)
class _Entry:
    """An assistant that is open, or is being opened.

    Attributes:
        opening: held by the thread that opens it.
        users: requests that wait for it or use it.
    """

    collection: Collection
    opening: threading.Lock = field(default_factory=threading.Lock)
    assistant: Assistant | None = None
    users: int = 0


class Assistants:
    """Thread-safe. While one is opened, only the requests for this one wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the entries; nothing is opened or closed while it is held
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        """By collection, generator and pipeline; the one that was used last is at the end."""
        self._replaced: list[_Entry] = []
        """Those in whose collection's place another one lies. They are closed after their last request."""

    @contextmanager
    def using(self, collection: Collection, llm: str, pipeline: str) -> Iterator[Assistant]:
        """An assistant, which stays open inside. Raises as `Assistant` does."""
        key = (str(collection.path), llm, pipeline)
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None or entry.collection is not collection:
                if entry is not None:
                    self._replaced.append(entry)
                entry = _Entry(collection)
            self._entries[key] = entry
            entry.users += 1
        try:
            yield self._open(entry, llm, pipeline)
        finally:
            with self._lock:
                entry.users -= 1
            self._close(MOST)

    def close(self) -> None:
        """Closes all of them."""
        with self._lock, ExitStack() as closing:
            for entry in (*self._entries.values(), *self._replaced):
                if entry.assistant is not None:
                    closing.callback(entry.assistant.close)
            self._entries.clear()
            self._replaced.clear()

    def _open(self, entry: _Entry, llm: str, pipeline: str) -> Assistant:
        with patiently(entry.opening):
            if entry.assistant is None:
                try:
                    entry.assistant = Assistant(entry.collection, llm=llm or None, pipeline=pipeline)
                except BudgetExceeded:
                    if not self._close(0):
                        raise
                    entry.assistant = Assistant(entry.collection, llm=llm or None, pipeline=pipeline)
            return entry.assistant

    def _close(self, most: int) -> int:
        """Closes unused ones until there are at most so many; returns how many were closed."""
        with self._lock:
            closed = [entry for entry in self._replaced if not entry.users]
            self._replaced = [entry for entry in self._replaced if entry.users]
            for key, entry in list(self._entries.items()):
                if not entry.users and (entry.assistant is None or len(self._entries) > most):
                    closed.append(self._entries.pop(key))
        opened = [entry.assistant for entry in closed if entry.assistant is not None]
        for assistant in opened:
            assistant.close()
        return len(opened)
