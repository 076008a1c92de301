"""Opening a connection to a database of ours: page checksums, and nothing in the file is trusted.

SQLite's own pages carry no checksums. Its `cksumvfs` shim, which comes with apsw, gives every page one when the page is
written to the database file, and verifies it whenever the page is read; pages in the write-ahead log have SQLite's own.
The shim takes a page of zeros for a good one, so what can end in zeros has a checksum in its row besides.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import apsw.sqlite_extra

from edge.apps.store.mark import HighWaterMark
from edge.errors import CapabilityError

_CHECKSUM_NBYTES = 8
"""Bytes that the shim keeps at the end of each page."""

_SHIM = "cksmvfs"

_JOURNAL_BYTES = 16 << 20
"""The log file is cut back to this size when a checkpoint has emptied it."""

EMPTIED = "the file is empty, and was not"
"""What is said of a file that `is_emptied`."""

_registering = threading.Lock()


def connect(uri: str, *, writable: bool, cache: int, busy_seconds: float) -> apsw.Connection:
    """A connection to the database file that an SQLite URI names. One thread at a time may use it.

    Args:
        writable: the file is made if it is missing, with room for checksums.
        cache: bytes of pages that the connection may keep.
        busy_seconds: how long to wait for another process that is writing.

    Raises:
        apsw.Error: the file cannot be opened, or is no database.
        CapabilityError: the installed apsw lacks the shim.
    """
    _register()
    flags = apsw.SQLITE_OPEN_URI
    flags |= apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if writable else apsw.SQLITE_OPEN_READONLY
    db = apsw.Connection(uri, flags=flags, vfs=_SHIM)
    try:
        db.set_busy_timeout(int(busy_seconds * 1000))
        # A database may have come with a cloned folder: nothing that its schema holds runs by itself.
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA cache_size = -{cache >> 10}")
        db.execute("PRAGMA mmap_size = 0")
        db.execute("PRAGMA foreign_keys = ON")
        if writable:
            if db.execute("PRAGMA page_count").fetchall()[0][0] == 0:
                reserve_checksums(db)
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            # Files that a committed state no longer names are deleted, so a commit must be on disk.
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}").fetchall()
    except BaseException:
        db.close(True)
        raise
    return db


def plain(path: Path) -> apsw.Connection:
    """A connection to a file whose schema may be damaged; nothing of it is read yet.

    Raises:
        apsw.Error: it cannot be opened, or is empty while its log is not.
    """
    _register()
    if is_emptied(path):
        raise apsw.CorruptError(EMPTIED)
    return apsw.Connection(str(path), vfs=_SHIM)


def reserve_checksums(db: apsw.Connection) -> None:
    """Makes room for checksums in the pages of a new database; in those of an old one when it is vacuumed next."""
    db.reserve_bytes(reserve=_CHECKSUM_NBYTES)


def has_checksums(db: apsw.Connection) -> bool:
    """Whether the pages of a database carry checksums, once it has been read."""
    return db.reserve_bytes() == _CHECKSUM_NBYTES


def is_emptied(path: Path) -> bool:
    """Whether a database file is empty and once held something: it has a log, or a mark of its commits. SQLite would
    take it for a new database and delete the log, which may hold all that was ever written.

    Raises:
        StorageError: the disk reports an error.
    """
    if not path.exists() or path.stat().st_size:
        return False
    return has_log(path) or bool(HighWaterMark(path.with_name(path.name + "-mark")).read_all())


def has_log(path: Path) -> bool:
    """Whether a write-ahead log that is not empty lies beside a database file."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except OSError:
        return False


def _register() -> None:
    """Makes the shim known to SQLite, once in a process."""
    with _registering:
        if _SHIM in apsw.vfs_names():
            return
        try:
            apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
        except (apsw.sqlite_extra.NotAvailable, LookupError, apsw.Error) as error:
            raise CapabilityError(
                "this build of apsw comes without cksumvfs, which verifies what is stored: install apsw from PyPI"
            ) from error
