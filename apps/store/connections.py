"""Connections to our databases, in a pool. Code in a file's schema never runs. `WriterLock`: one writer of a store at a
time, across threads and processes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
from apsw import Connection, CorruptError, Error

from edge.apps.store.failures import not_writable, translated
from edge.apps.store.folder import SEGMENTS, can_be_written, has_log, is_frozen, reading_uri, writing_uri
from edge.apps.store.rows import ALWAYS_READ, Leasing, register
from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, StorageError, StoreBusy

_JOURNAL_BYTES = 16 << 20  # The log is cut back to this size by a checkpoint.
_SYNCHRONOUS = "FULL"  # At every commit, because files that a committed state no longer names are deleted.

EMPTIED = "the file is empty, and was not"


WRITING = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def connect(uri: str, *, writable: bool, cache: int, busy_seconds: float) -> Leasing:
    """Opens the database file that an SQLite URI names, for one thread at a time. `cache` is in bytes."""
    db = Leasing(uri, flags=WRITING if writable else apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(int(busy_seconds * 1000))
        # A database may have come with a cloned folder: no code in its schema may run.
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA cache_size = -{cache >> 10}")
        db.execute("PRAGMA mmap_size = 0")
        db.execute("PRAGMA foreign_keys = ON")
        register(db)
        if writable:
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
            db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}").fetchall()
    except BaseException:
        db.close(True)
        raise
    return db


def plain(path: Path) -> apsw.Connection:
    """Its schema may be damaged. It reads nothing of the file yet."""
    if is_emptied(path):
        raise apsw.CorruptError(EMPTIED)
    if is_frozen(path):
        return apsw.Connection(reading_uri(path), flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY)
    return apsw.Connection(writing_uri(path), flags=WRITING)


def is_emptied(path: Path) -> bool:
    """Whether a database file is empty but once held data: SQLite would treat it as new and delete the log."""
    if not path.exists() or path.stat().st_size:
        return False
    return has_log(path) or any((path.parent / SEGMENTS).glob("*.blk"))


PAGE_CACHE = 2 << 20
BUSY_S = 30.0  # How long one waits for another writer.

CONNECTION_BYTES = 512 << 10

_PER_VALUE = 8  # The limit of the process as a multiple of the longest value: a memory is stored in so many copies.
_IDLE = 2

_MOST = 4  # Simultaneous transactions.
_PATIENCE_S = 1.0  # Then one more connection is opened, because the users of the others may wait for this thread.


class _Handle:
    """A connection and the lease of its cache. `frozen`: size and time of a file that was opened as immutable."""

    def __init__(self, connection: Connection, lease: Lease, frozen: tuple[int, int] | None) -> None:
        self.connection = connection
        self.frozen = frozen
        self.close = weakref.finalize(self, _close, connection, lease)


class ConnectionPool:
    def __init__(self, path: Path, *, budget: MemoryBudget, read_only: bool, verbs: str) -> None:
        self.path = path
        self.read_only = read_only
        self._verbs = verbs
        self._budget = budget
        self._own = threading.local()
        self._idle: list[_Handle] = []
        self._lent = 0
        self._changed = threading.Condition()
        self._closed = False

    def current(self) -> Connection | None:
        return getattr(self._own, "connection", None)

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
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
                with self._changed:  # wait until another transaction returns its connection
                    self._changed.wait_for(lambda: self._idle or self._closed or self._lent == 1, BUSY_S)
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
        """One that sees the current content of the file."""
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
        lease = self._budget.reserve("SQLite", PAGE_CACHE + CONNECTION_BYTES)
        frozen = self._frozen()
        try:
            with translated(self.path, self._verbs, BUSY_S):
                if is_emptied(self.path):
                    raise CorruptError(EMPTIED)
                writable = not self.read_only
                uri = writing_uri(self.path) if writable else reading_uri(self.path)
                db = connect(uri, writable=writable, cache=PAGE_CACHE, busy_seconds=BUSY_S)
                # Anybody may have written the file. SQLite refuses a longer value before it takes memory for it.
                longest = max(ALWAYS_READ, self._budget.limit // _PER_VALUE)
                db.budget = self._budget
                db.limit(apsw.SQLITE_LIMIT_LENGTH, min(longest, db.limit(apsw.SQLITE_LIMIT_LENGTH)))
        except BaseException:
            lease.release()
            raise
        return _Handle(db, lease, frozen)

    def _frozen(self) -> tuple[int, int] | None:
        """Size and time of a file that must be opened as immutable: a write by another process changes them."""
        if not (self.read_only and is_frozen(self.path)):
            return None
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        own = self.current() is not None
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lent <= own)
            idle, self._idle = self._idle, []
        for handle in idle:
            handle.close()


def _close(connection: Connection, lease: Lease) -> None:
    # Committed data is in the log. A failed checkpoint loses nothing, so its error is suppressed.
    with suppress(Error):
        connection.close(True)
    lease.release()


LOCK = "writer.lock"


class WriterLock:
    """Held while files are indexed, removed or compacted, and while a store is repaired or restored; readers do not
    take it. It is SQLite's own lock, on a file beside the database, because it is held longer than any transaction. The
    system releases it when the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.RLock()
        self._depth = 0

    @contextmanager
    def __call__(self, seconds: float = BUSY_S) -> Iterator[None]:
        """Waits at most so long. The same thread may enter again."""
        if not self._threads.acquire(timeout=seconds):
            raise self._busy("thread", seconds)
        try:
            if self._depth:
                yield
                return
            db = self._opened(seconds)
            try:
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0
            finally:
                db.close()
        finally:
            self._threads.release()

    def is_held(self) -> bool:
        if not self._path.exists():
            return False
        try:
            uri = self._path.absolute().as_uri()
            db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY)
        except apsw.Error:
            return False
        try:
            db.execute("SELECT 1 FROM sqlite_schema").fetchall()
        except (apsw.BusyError, apsw.LockedError):
            return True
        except apsw.Error:
            return False
        finally:
            db.close(True)
        return False

    def _opened(self, seconds: float) -> apsw.Connection:
        if self._path.parent.exists() and not can_be_written(self._path.parent):
            raise not_writable(self._path.parent)
        try:
            db = apsw.Connection(writing_uri(self._path), flags=WRITING)
            db.set_busy_timeout(int(seconds * 1000))
        except apsw.Error as error:
            raise StorageError(f"{self._path} cannot be opened: {error}") from error
        try:
            # The file stays empty, so nothing can be rolled back. A journal on disk would only fail when the disk is
            # full.
            db.execute("PRAGMA journal_mode = MEMORY")
            db.execute("BEGIN EXCLUSIVE")
        except apsw.Error as error:
            db.close(True)
            if isinstance(error, apsw.BusyError | apsw.LockedError):
                raise self._busy("process", seconds) from error
            raise StorageError(f"{self._path} cannot be locked: {error}") from error
        return db

    def _busy(self, who: str, seconds: float) -> StoreBusy:
        return StoreBusy(
            f"another {who} has been changing {self._path.parent} for more than "
            f"{seconds:g} s; try again when it is done"
        )
