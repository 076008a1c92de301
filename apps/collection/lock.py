"""`WriterLock`: one writer of a collection at a time, over all threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from edge.errors import StorageError


class WriterLock:
    """Held while files are taken in, removed or compacted; readers do not care.

    The lock is SQLite's own, on a file beside the collection: it works on every platform, and the system lets go of it
    when the process dies. Held longer than any transaction, it cannot be one of the database itself.
    """

    def __init__(self, path: Path, *, seconds: float = 30.0) -> None:
        """`path` of the lock's file; `seconds` to wait for another writer."""
        self._path = path
        self._seconds = seconds
        self._threads = threading.RLock()
        self._depth = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Waits for other writers, and keeps them out while the block runs; the same thread may enter again.

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
        """Whether anybody is writing now, another process or this one."""
        if not self._path.exists():
            return False
        try:
            db = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
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
        """The locked file."""
        try:
            db = apsw.Connection(str(self._path))
            db.set_busy_timeout(int(self._seconds * 1000))
        except apsw.Error as error:
            raise StorageError(f"{self._path} cannot be opened: {error}") from error
        try:
            # The file stays empty, so there is nothing to roll back: a journal would only be refused by a full disk.
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
            f"another {who} has been changing the collection in {self._path.parent} for more than "
            f"{self._seconds:g} s; try again when it is done"
        )
