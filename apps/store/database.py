"""`Database`: one SQLite file with write-ahead logging, numbered migrations, and a few connections for all threads. A
write is one transaction. Readers see the last committed state, and a writer never blocks them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import apsw

from edge.apps.store import connections
from edge.apps.store.connections import ConnectionPool
from edge.apps.store.failures import (
    HEALTH_TABLE,
    DamagedStore,
    StoreUnavailable,
    damaged,
    not_writable,
    refuse_schema,
    translated,
)
from edge.apps.store.folder import can_be_written
from edge.budget import MemoryBudget
from edge.ivf.base import Connection
from edge.resident import Closing

Migration = str | Callable[[Connection], None] | None
"""A script of SQL statements, or a function that runs inside the step's transaction. None stands for a step from before
the first release: a store that got no further is refused, and a new one skips it."""


_LOG_PAGES = 1_000

_LOG_PATIENCE_MS = 2_000  # Most readers take milliseconds, some never end.

_WRITERS = {"edge": "index", "edge memory": "add"}
"""By the commands of a store, the one that writes to it."""


def get_setting(db: Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_setting(db: Connection, name: str, value: str) -> None:
    db.execute(
        "INSERT INTO settings VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value", (name, value)
    )


class Database(Closing):
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
        verbs: str = "edge",
    ) -> None:
        """Opens the file, makes it if it is missing, and brings its schema up to date. `migrations` is its whole
        history: only append to it. `verbs` is the command that messages name for `check` and `repair`."""
        self.path = path
        self.read_only = read_only
        self.verbs = verbs
        if not read_only and path.exists() and not can_be_written(path.parent):
            raise not_writable(path.parent)
        self._pool = ConnectionPool(path, budget=budget, read_only=read_only, verbs=verbs)
        self._writing = threading.Lock()
        try:
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: committed at the end of the block, rolled back if the block raises."""
        if self.read_only:
            raise not_writable(self.path.parent)
        if self._pool.current() is not None:
            raise RuntimeError("a transaction is already open in this thread")
        with self._writing, self._pool.borrowed() as db:
            with self._translated():
                db.execute("BEGIN IMMEDIATE")
            try:
                with self._translated():
                    yield db
                    _commit(db)
            finally:
                _end(db)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the last committed state; inside a transaction of this thread, its view."""
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
        """Rewrites the file without its free pages and empties the log; see `settle`."""
        with self._writing, self._pool.borrowed() as db, self._translated():
            db.execute("VACUUM")
        return self.settle()

    def settle(self) -> bool:
        """Moves the log into the file; returns whether it could be emptied: then no earlier transaction is open
        anywhere."""
        with self._writing, self._pool.borrowed() as db, self._translated():
            # SQLite empties the log only when nobody reads an older state (https://sqlite.org/c3ref/wal_checkpoint_v2).
            db.execute(f"PRAGMA busy_timeout = {_LOG_PATIENCE_MS}")
            ((busy, _, _),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {int(connections.BUSY_S * 1000)}")
        return not busy

    def damaged(self, what: str) -> DamagedStore:
        return damaged(self.path, what, self.verbs)

    def close(self) -> None:
        """Waits until other threads have ended their transactions. Closing twice is harmless."""
        self._pool.close()

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        with self.read() as db:
            version = _version(db)
            kept = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'health'").fetchone()
            current = version == len(migrations) and kept is not None
            self._refuse_foreign(db)
        refuse_schema(self.path, version, migrations)
        if self.read_only and not current:
            raise StoreUnavailable(
                f"{self.path} has schema {version} and this version of edge-rag needs {len(migrations)}: "
                f"open it once for writing, as `{self.verbs} {_WRITERS[self.verbs]}` does, to bring it up to date"
            )
        if not current:
            self._bring_up_to_date(migrations)

    def _bring_up_to_date(self, migrations: Sequence[Migration]) -> None:
        with self.write() as db:
            db.execute(HEALTH_TABLE)
        for number, migration in enumerate(migrations, 1):
            if migration is None:
                continue
            with self.write() as db:
                if _version(db) >= number:  # applied earlier, or by another process meanwhile
                    continue
                if callable(migration):
                    migration(db)
                else:
                    db.execute(migration)
                db.execute(f"PRAGMA user_version = {number}").fetchall()

    def _refuse_foreign(self, db: Connection) -> None:
        """For triggers, views or virtual tables that this program does not make."""
        row = db.execute(
            "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') "
            "OR (type = 'table' AND sql LIKE 'CREATE VIRTUAL%' AND sql NOT LIKE '% USING fts5(text, content=%') LIMIT 1"
        ).fetchone()
        if row is not None:
            what = "virtual table" if row[0] == "table" else row[0]
            raise damaged(self.path, f"holds a {what}, {row[1]!a}, that edge-rag does not make", self.verbs)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self.path, self.verbs, connections.BUSY_S)


def _commit(db: apsw.Connection) -> None:
    """Also moves a long log into the file. An error after the commit is ignored: SQLite tries again later."""
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
    if db.in_transaction:
        with contextlib.suppress(apsw.Error):  # the original error is the one to report
            db.execute("ROLLBACK")


def _version(db: Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchall()[0][0])
