"""`WriterLock`: one writer of a collection or memory at a time, across threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from edge.apps.store.connections import WRITING
from edge.apps.store.failures import not_writable
from edge.apps.store.folder import can_be_written, writing_uri
from edge.errors import StorageError

LOCK = "writer.lock"
"""Name of the lock file in the folder of a store."""


class WriterLock:
    """Held while files are indexed, removed or compacted, and while a store is repaired or restored. Readers do not
    take it.

    The lock is SQLite's own, on a file beside the database. It works on every platform, and the system releases it when
    the process dies. It is held longer than any transaction, so it cannot be a lock on the database itself.
    """

    def __init__(self, path: Path, *, seconds: float = 30.0) -> None:
        """`path` is the lock file; `seconds` is the wait for another writer."""
        self._path = path
        self._seconds = seconds
        self._threads = threading.RLock()
        self._depth = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Waits for other writers, and excludes them while the block runs. The same thread may enter again.

        Raises:
            StorageError: another writer did not finish in time, or the file cannot be used.
        """
        if not self._threads.acquire(timeout=self._seconds):
            raise self._busy("thread")
        try:
            if self._depth:
                yield
                return
            db = self._opened()
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
        """Whether any process, this one included, is writing now."""
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

    def _opened(self) -> apsw.Connection:
        if self._path.parent.exists() and not can_be_written(self._path.parent):
            raise not_writable(self._path.parent)
        try:
            db = apsw.Connection(writing_uri(self._path), flags=WRITING)
            db.set_busy_timeout(int(self._seconds * 1000))
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
                raise self._busy("process") from error
            raise StorageError(f"{self._path} cannot be locked: {error}") from error
        return db

    def _busy(self, who: str) -> StorageError:
        return StorageError(
            f"another {who} has been changing {self._path.parent} for more than "
            f"{self._seconds:g} s; try again when it is done"
        )
