"""`Database`: one SQLite file with write-ahead logging, numbered migrations, and a few connections for all threads.

A write is one transaction that is seen as a whole or not at all; readers see the last committed state and are never
blocked by it. Every connection's page cache is held under a lease of the memory budget.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, EdgeError, StorageError

Migration = str | Callable[[sqlite3.Connection], None]
"""One step of a schema: a script of SQL statements, or a function that is called inside the step's transaction."""

_CONNECTION_BYTES = 512 << 10
"""What a connection holds besides its page cache: prepared statements, the schema, FTS5's pending terms."""

_IDLE = 2
"""Connections kept open for the next transactions: a reader's and a writer's."""

_MOST = 4
"""Transactions at a time, so that a pool of many threads does not hold a page cache for each of them."""

_PATIENCE_S = 1.0
"""Wait for one of them to end. Who has them may wait for the one who waits; then one more is opened."""

_JOURNAL_BYTES = 16 << 20
"""The log file is cut back to this size when a checkpoint has emptied it."""


class _Handle:
    """One connection and the lease of its cache, given back together.

    Attributes:
        frozen: the file's size and time when it was opened as one that does not change; None if it may.
    """

    def __init__(self, connection: sqlite3.Connection, lease: Lease, frozen: tuple[int, int] | None) -> None:
        self.connection = connection
        self.frozen = frozen
        self.close = weakref.finalize(self, _close, connection, lease)


class Database:
    """One SQLite file. Thread-safe: every transaction has a connection; writers of this object wait for each other.

    >>> database = Database(Path("notes.db"), ["CREATE TABLE notes(text TEXT)"], budget=budget)
    >>> with database.write() as db:
    ...     db.execute("INSERT INTO notes VALUES (?)", ("a note",))
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        budget: MemoryBudget,
        read_only: bool = False,
        cache: int = 2 << 20,
        busy_seconds: float = 30.0,
    ) -> None:
        """Opens the file, makes it if it is missing, and brings its schema up to date.

        Args:
            migrations: the whole history of the schema, oldest first; the file remembers how many were applied. Only
                ever append to it.
            read_only: nothing is created or migrated.
            cache: bytes of pages each connection may keep.
            busy_seconds: how long to wait for another process that is writing.

        Raises:
            StorageError: the file cannot be opened, is no database, or its schema is newer than `migrations`.
            BudgetExceeded: the cache does not fit the budget.
        """
        self.path = path
        self.read_only = read_only
        self._budget = budget
        self._cache = cache
        self._busy_seconds = busy_seconds
        self._own = threading.local()
        self._idle: list[_Handle] = []
        self._lent = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._closed = False
        try:
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end of the block, taken back if the block raises.

        Raises:
            StorageError: another process kept writing for too long, the disk refused, the file is damaged, or this
                object has been closed.
            BudgetExceeded: a connection's page cache does not fit.
        """
        if self._current() is not None:
            raise RuntimeError("a transaction is already open in this thread")
        with self._writing, self._borrowed() as db:
            with self._translated():
                db.execute("BEGIN IMMEDIATE")
            try:
                with self._translated():
                    yield db
                    db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the last committed state; inside another transaction of this thread, that one's.

        Raises:
            StorageError: the file cannot be read, is damaged, or this object has been closed.
            BudgetExceeded: a connection's page cache does not fit.
        """
        current = self._current()
        if current is not None:
            yield current
            return
        with self._borrowed() as db, self._translated():
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def vacuum(self) -> None:
        """Rewrites the file without its free pages and empties the log.

        Raises:
            StorageError: another process uses the file, or the disk has no room for a second copy.
        """
        with self._writing, self._borrowed() as db, self._translated():
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Begins no more transactions, waits for those of other threads to end, and closes the connections. Closing
        twice is harmless."""
        own = self._current() is not None
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lent <= own)
            idle, self._idle = self._idle, []
        for handle in idle:
            handle.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _current(self) -> sqlite3.Connection | None:
        """The connection of this thread's open transaction."""
        return getattr(self._own, "connection", None)

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
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
                    self._changed.wait_for(lambda: self._idle or self._closed or self._lent == 1, self._busy_seconds)
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
        lease = self._budget.reserve("SQLite", self._cache + _CONNECTION_BYTES)
        frozen = self._frozen()
        try:
            with self._translated():
                # One thread at a time uses it.
                db = sqlite3.connect(
                    self._uri(frozen is not None),
                    uri=True,
                    isolation_level=None,
                    check_same_thread=False,
                    timeout=self._busy_seconds,
                )
            handle = _Handle(db, lease, frozen)
        except BaseException:
            lease.release()
            raise
        try:
            with self._translated():
                db.execute(f"PRAGMA cache_size = -{self._cache >> 10}")
                db.execute("PRAGMA mmap_size = 0")
                db.execute("PRAGMA foreign_keys = ON")
                if not self.read_only:
                    db.execute("PRAGMA journal_mode = WAL")
                    # Files that a committed state no longer names are deleted, so a commit must be on disk.
                    db.execute("PRAGMA synchronous = FULL")
                    db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        except BaseException:
            handle.close()
            raise
        return handle

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

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        with self.read() as db:
            version = _version(db)
        if version > len(migrations):
            raise StorageError(
                f"{self.path} was written by a newer version of edge-rag (schema {version}; this one knows "
                f"{len(migrations)}): update edge-rag to open it"
            )
        if version == len(migrations):
            return
        if self.read_only:
            raise StorageError(
                f"{self.path} has schema {version} and this version of edge-rag needs {len(migrations)}: "
                f"open it once for writing, as `edge index` does, to bring it up to date"
            )
        for number, migration in enumerate(migrations, 1):
            with self.write() as db:
                if _version(db) >= number:  # applied before, or by another process meanwhile
                    continue
                if callable(migration):
                    migration(db)
                else:
                    for statement in _statements(migration):
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors as ours, in one sentence with the file's name."""
        try:
            yield
        except EdgeError:
            raise
        except sqlite3.OperationalError as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                raise StorageError(
                    f"another process has been writing to {self.path} for more than {self._busy_seconds:g} s; "
                    f"try again when it is done"
                ) from error
            raise StorageError(f"{self.path}: {reason}") from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise StorageError(f"{self.path} is damaged or not a database: {error}") from error


def _close(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.close()
    lease.release()


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction they belong to."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
