"""`ConnectionPool`: a few connections to one SQLite file for all threads, each with a lease for its page cache."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apsw import Connection, CorruptError

from edge.apps.store.connecting import EMPTIED, connect, is_emptied
from edge.apps.store.failures import translated
from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, StorageError

PAGE_CACHE = 2 << 20
"""Bytes of pages that a connection keeps, if nothing else is said."""

CONNECTION_BYTES = 512 << 10
"""What a connection holds besides its page cache: prepared statements, the schema, FTS5's pending terms."""

_IDLE = 2
"""Connections kept open for the next transactions: a reader's and a writer's."""

_MOST = 4
"""Transactions at a time, so that a pool of many threads does not hold a page cache for each of them."""

_PATIENCE_S = 1.0
"""Wait for one of them to end. Who has them may wait for the one who waits; then one more is opened."""


class _Handle:
    """One connection and the lease of its cache, given back together.

    Attributes:
        frozen: the file's size and time when it was opened as one that does not change; None if it may.
    """

    def __init__(self, connection: Connection, lease: Lease, frozen: tuple[int, int] | None) -> None:
        self.connection = connection
        self.frozen = frozen
        self.close = weakref.finalize(self, _close, connection, lease)


class ConnectionPool:
    """Lends connections to transactions. Thread-safe."""

    def __init__(
        self, path: Path, *, budget: MemoryBudget, read_only: bool, cache: int, busy_seconds: float, verbs: str
    ) -> None:
        """Opens nothing yet; the arguments are those of `Database`."""
        self.path = path
        self.read_only = read_only
        self.busy_seconds = busy_seconds
        self._verbs = verbs
        self._budget = budget
        self._cache = cache
        self._own = threading.local()
        self._idle: list[_Handle] = []
        self._lent = 0
        self._changed = threading.Condition()
        self._closed = False

    def current(self) -> Connection | None:
        """The connection of this thread's open transaction."""
        return getattr(self._own, "connection", None)

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """A connection that nobody else uses meanwhile."""
        handle = self._take()
        self._own.connection = handle.connection
        try:
            yield handle.connection
        finally:
            self._own.connection = None
            with self._changed:
                if self._closed or len(self._idle) >= _IDLE:
                    handle.close()
                else:
                    self._idle.append(handle)
                self._lent -= 1
                self._changed.notify_all()

    def _take(self) -> _Handle:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._closed or self._lent < _MOST, _PATIENCE_S)
            self._check_open()
            self._lent += 1
            if (handle := self._idle_one()) is not None:
                return handle
        try:
            try:
                return self._open()
            except BudgetExceeded:
                with self._changed:  # another transaction's connection will do
                    self._changed.wait_for(lambda: self._idle or self._closed or self._lent == 1, self.busy_seconds)
                    self._check_open()
                    if (handle := self._idle_one()) is not None:
                        return handle
                return self._open()
        except BaseException:
            with self._changed:
                self._lent -= 1
                self._changed.notify_all()
            raise

    def _idle_one(self) -> _Handle | None:
        """An idle connection, if there is one that sees what the file holds now."""
        while self._idle:
            handle = self._idle.pop()
            if handle.frozen is None or handle.frozen == self._frozen():
                return handle
            handle.close()
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.path} has been closed")

    def _open(self) -> _Handle:
        lease = self._budget.reserve("SQLite", self._cache + CONNECTION_BYTES)
        frozen = self._frozen()
        try:
            with translated(self.path, self._verbs, self.busy_seconds):
                if is_emptied(self.path):
                    raise CorruptError(EMPTIED)
                uri = self._uri(frozen is not None)
                writable = not self.read_only
                db = connect(uri, writable=writable, cache=self._cache, busy_seconds=self.busy_seconds)
        except BaseException:
            lease.release()
            raise
        return _Handle(db, lease, frozen)

    def _uri(self, frozen: bool) -> str:
        name = self.path.absolute().as_uri()
        if not self.read_only:
            return f"{name}?mode=rwc"
        return f"{name}?mode=ro&immutable=1" if frozen else f"{name}?mode=ro"

    def _frozen(self) -> tuple[int, int] | None:
        """Size and time of the file, where it has to be read as one that does not change: readers of a log keep marks
        beside it, and cannot where they must not write. That others can write there shows in size and time."""
        log = self.path.with_name(self.path.name + "-wal")
        if not self.read_only or os.access(self.path.parent, os.W_OK) or log.exists() or not self.path.exists():
            return None
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        """Begins no more transactions, waits for those of other threads to end, and closes the connections. Closing
        twice is harmless."""
        own = self.current() is not None
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lent <= own)
            idle, self._idle = self._idle, []
        for handle in idle:
            handle.close()


def _close(connection: Connection, lease: Lease) -> None:
    connection.close(True)
    lease.release()
