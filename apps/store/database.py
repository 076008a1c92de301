"""`Database`: one SQLite file with write-ahead logging, numbered migrations, and a few connections for all threads.

A write is one transaction: other connections see all of it or nothing. Readers see the last committed state, and a
writer never blocks them. Every connection's page cache is held under a lease of the memory budget.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import psutil

from edge.apps.store import health
from edge.apps.store.connections import PAGE_CACHE, ConnectionPool
from edge.apps.store.failures import DamagedStore, StoreUnavailable, damaged, not_writable, refuse_newer, translated
from edge.apps.store.folder import can_be_written, has_log
from edge.apps.store.health import Trouble
from edge.apps.store.mark import HighWaterMark
from edge.apps.store.schema_copy import INTERRUPTED, keep, kept, read_copied, read_schema
from edge.budget import MemoryBudget
from edge.errors import StorageError
from edge.ivf.storage.connection import Connection
from edge.resident import Closing

Migration = str | Callable[[Connection], None]
"""One step of a schema: a script of SQL statements, or a function that runs inside the step's transaction."""

_SAME_START_S = 60.0
"""Two start times of the system that differ by less are the same start: the clock is adjusted now and then."""

_BOOKKEEPING = f"""
CREATE TABLE IF NOT EXISTS commits(one INTEGER PRIMARY KEY CHECK (one = 1), lineage BLOB NOT NULL,
    number INTEGER NOT NULL);
{health.TABLE}"""
"""Tables of every database besides the tables of its owner: the number of the last commit, and known troubles."""


_LOG_PAGES = 1_000
"""Pages in the log at which a commit also moves the log into the database file."""

_LOG_PATIENCE_MS = 2_000
"""Wait for other readers before the log is emptied: most readers take milliseconds, some never end."""


class Database(Closing):
    """One SQLite file. Thread-safe: every transaction has a connection; writers of this object wait for each other.

    Attributes:
        lost: describes commits that the file once held and that are missing since it was opened; None if none is
            missing.

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
        cache: int = PAGE_CACHE,
        busy_seconds: float = 30.0,
        verbs: str = "edge",
        copied: Sequence[str] = (),
    ) -> None:
        """Opens the file, makes it if it is missing, and brings its schema up to date.

        Args:
            migrations: the whole history of the schema, oldest first. The file stores how many were applied, so only
                append to the list.
            read_only: creates and migrates nothing.
            cache: bytes of pages that each connection may keep.
            busy_seconds: how long to wait while another process writes.
            verbs: the command that has the verbs `check` and `repair` for this database, as messages name it.
            copied: queries whose rows are also copied into a file beside the database, together with the schema.

        Raises:
            StorageError: the file cannot be opened, is no database, or its schema is newer than `migrations`.
            BudgetExceeded: the cache does not fit the budget.
        """
        self.path = path
        self.read_only = read_only
        self.verbs = verbs
        self._copied = copied
        self.lost: Trouble | None = None
        if not read_only and path.exists() and not can_be_written(path.parent):
            raise not_writable(path.parent)
        self._mark = HighWaterMark(path.with_name(path.name + "-mark"))
        self._started = psutil.boot_time()
        self._pool = ConnectionPool(
            path, budget=budget, read_only=read_only, cache=cache, busy_seconds=busy_seconds, verbs=verbs
        )
        self._writing = threading.Lock()
        try:
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: committed at the end of the block, rolled back if the block raises.

        Raises:
            StorageError: another process kept writing for too long, the disk refused, the file is damaged or was opened
                for reading only, or this object has been closed.
            BudgetExceeded: a connection's page cache does not fit.
        """
        if self.read_only:
            raise not_writable(self.path.parent)
        if self._pool.current() is not None:
            raise RuntimeError("a transaction is already open in this thread")
        with self._writing, self._pool.borrowed() as db:
            with self._translated():
                db.execute("BEGIN IMMEDIATE")
            before = db.total_changes()
            commit: Any = None
            try:
                with self._translated():
                    yield db
                    if db.total_changes() != before:
                        sql = "UPDATE commits SET number = number + 1 RETURNING lineage, number"
                        commit = db.execute(sql).fetchall()[0]
                    _commit(db)
            finally:
                _end(db)
            if commit is not None:
                self._remember(*commit)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the last committed state; inside a transaction of this thread, the view of that one.

        Raises:
            StorageError: the file cannot be read, is damaged, or this object has been closed.
            BudgetExceeded: a connection's page cache does not fit.
        """
        current = self._pool.current()
        if current is not None:
            yield current
            return
        with self._pool.borrowed() as db, self._translated():
            db.execute("BEGIN")
            try:
                yield db
            finally:
                _end(db)

    def vacuum(self) -> bool:
        """Rewrites the file without its free pages and empties the log; returns whether the log could be emptied. If
        so, no transaction that began earlier is still open in any process.

        Raises:
            StorageError: another process uses the file, or the disk has no room for a second copy.
        """
        with self._writing, self._pool.borrowed() as db, self._translated():
            db.execute("VACUUM")
        return self.settle()

    def settle(self) -> bool:
        """Moves the log into the file as far as open readers allow, and updates the copy of the schema; returns whether
        the log could be emptied. If so, no transaction that began earlier is still open in any process.

        Raises:
            StorageError: the disk refuses.
        """
        with self._writing, self._pool.borrowed() as db, self._translated():
            # SQLite empties the log only when nobody reads an older state (https://sqlite.org/c3ref/wal_checkpoint_v2).
            db.execute(f"PRAGMA busy_timeout = {_LOG_PATIENCE_MS}")
            ((busy, _, _),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {int(self._pool.busy_seconds * 1000)}")
        self.copy()
        return not busy

    def copy(self) -> None:
        """Brings the copy of the schema up to date.

        Raises:
            StorageError: the disk refuses.
        """
        with self.read() as db:
            now = read_copied(db, self._copied)
        if now != kept(self.path):
            try:
                keep(self.path, now)
            except OSError as error:
                raise StorageError(f"nothing can be written beside {self.path}: {error.strerror}") from error

    def damaged(self, what: str) -> DamagedStore:
        """The error for damage in the stored data; `what` completes the sentence after the file's name."""
        return damaged(self.path, what, self.verbs)

    def close(self) -> None:
        """Starts no new transactions, waits until other threads have ended theirs, and closes the connections. Closing
        twice is harmless."""
        self._pool.close()

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        left_behind = not self.read_only and has_log(self.path)
        known = self._history()
        with self.read() as db:
            version = _version(db)
            complete = _has_bookkeeping(db)
            schema = read_schema(db)
            self._refuse_foreign(db)
        if version == INTERRUPTED:
            raise self.damaged("has lost its first page, and its repair was interrupted")
        refuse_newer(self.path, version, len(migrations))
        current = version == len(migrations) and complete
        if self.read_only and not current:
            raise StoreUnavailable(
                f"{self.path} has schema {version} and this version of edge-rag needs {len(migrations)}: "
                f"open it once for writing, as `edge index` does, to bring it up to date"
            )
        if not current:
            self._bring_up_to_date(migrations)
        if not self.read_only:
            copied = kept(self.path)
            if not current or copied is None or copied.schema != schema:
                self.settle()
        self._compare(known, left_behind)

    def _bring_up_to_date(self, migrations: Sequence[Migration]) -> None:
        with self.write() as db:
            for statement in _statements(_BOOKKEEPING):
                db.execute(statement)
            db.execute("INSERT OR IGNORE INTO commits VALUES (1, ?, 0)", (secrets.token_bytes(16),))
        for number, migration in enumerate(migrations, 1):
            with self.write() as db:
                if _version(db) >= number:  # applied earlier, or by another process meanwhile
                    continue
                if callable(migration):
                    migration(db)
                else:
                    for statement in _statements(migration):
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}").fetchall()

    def _refuse_foreign(self, db: Connection) -> None:
        """Raises `DamagedStore` for a schema with triggers, views or virtual tables that this program does not make."""
        row = db.execute(
            "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') "
            "OR (type = 'table' AND sql LIKE 'CREATE VIRTUAL%' AND sql NOT LIKE '% USING fts5(text, content=%') LIMIT 1"
        ).fetchone()
        if row is not None:
            what = "virtual table" if row[0] == "table" else row[0]
            raise damaged(self.path, f"holds a {what}, {row[1]!a}, that edge-rag does not make", self.verbs)

    def _compare(self, known: tuple[int, float] | None, left_behind: bool) -> None:
        """Compares the number of the last commit with the mark, which was read first. If the system was restarted after
        the last commit and a log was left behind, checks all pages once."""
        with self.read() as db:
            lineage, number = db.execute("SELECT lineage, number FROM commits").fetchone()
            if left_behind and known is not None and abs(known[1] - self._started) > _SAME_START_S:
                found = db.execute("PRAGMA quick_check(1)").fetchall()
                if found != [("ok",)]:
                    raise damaged(self.path, f"is damaged since the system stopped ({found[0][0]})", self.verbs)
        if known is not None and number < known[0]:
            missing = known[0] - number
            what = "the last commit is" if missing == 1 else f"the last {missing:,} commits are"
            self.lost = Trouble("lost commits", f"{what} missing: the log was damaged", f"{self.verbs} repair")
            if not self.read_only:
                with self.write() as db:
                    health.note(db, self.lost)
                    db.execute("UPDATE commits SET number = max(number, ?)", (known[0],))
        elif not self.read_only and not self._mark.make(lineage, number, self._started) and known is None:
            self._remember(lineage, number)

    def _history(self) -> tuple[int, float] | None:
        """The last commit in the mark. Read it before the database, because other processes go on writing."""
        marks = self._mark.read_all()
        if not marks or not self.path.exists():
            return None
        with self.read() as db:
            if not _has_bookkeeping(db):  # the log held all tables, and it is gone
                return max(marks.values())
            lineage = db.execute("SELECT lineage FROM commits").fetchone()[0]
        return marks.get(lineage)

    def _remember(self, lineage: bytes, number: int) -> None:
        # The commit is durable. If the mark cannot be written, a later loss of this commit goes unnoticed.
        with contextlib.suppress(OSError):
            self._mark.write(lineage, number, self._started)

    def _translated(self) -> AbstractContextManager[None]:
        """Raises SQLite's errors as ours, in one sentence with the file's name."""
        return translated(self.path, self.verbs, self._pool.busy_seconds)


def _commit(db: apsw.Connection) -> None:
    """Commits, and moves the log into the file if it has become long. An error after the commit is ignored: SQLite
    tries the checkpoint again later."""
    lengths: list[int] = []

    def committed(_: apsw.Connection, __: str, pages: int) -> int:
        lengths.append(pages)
        return apsw.SQLITE_OK

    db.set_wal_hook(committed)
    try:
        db.execute("COMMIT")
    except apsw.Error:
        if not lengths:
            raise
    if lengths and lengths[0] >= _LOG_PAGES:
        with contextlib.suppress(apsw.Error):
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def _end(db: Connection) -> None:
    """Rolls back an uncommitted transaction."""
    if db.in_transaction:
        with contextlib.suppress(apsw.Error):  # the original error is the one to report
            db.execute("ROLLBACK")


def _version(db: Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchall()[0][0])


def _has_bookkeeping(db: Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'commits'").fetchone() is not None


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one. `executescript` would commit the surrounding transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if apsw.complete(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
