"""Opens connections to our databases, with page checksums. Code in the file's schema never runs.

SQLite's own pages carry no checksums. Its `cksumvfs` shim, which comes with apsw, adds one when a page is written to
the database file, and verifies it when the page is read. Pages in the write-ahead log have checksums of SQLite's own,
and `verified_log` verifies those.
The shim accepts a page of zeros as sound. So a row that can end in zeros also stores a checksum of its own.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import apsw.sqlite_extra

from edge.apps.store.frozen import has_log, is_frozen, reading_uri
from edge.apps.store.mark import HighWaterMark
from edge.apps.store.verified_log import put_below
from edge.errors import CapabilityError

_CHECKSUM_NBYTES = 8
"""Bytes that the shim keeps at the end of each page."""

_SHIM = "cksmvfs"

_JOURNAL_BYTES = 16 << 20
"""The log file is cut back to this size when a checkpoint has emptied it."""

EMPTIED = "the file is empty, and was not"
"""The error text for a file that `is_emptied`."""

_registering = threading.Lock()


def connect(uri: str, *, writable: bool, cache: int, busy_seconds: float) -> apsw.Connection:
    """Opens the database file that an SQLite URI names. Only one thread at a time may use the connection.

    Args:
        writable: makes the file if it is missing, with room for checksums.
        cache: bytes of pages that the connection may keep.
        busy_seconds: how long to wait while another process writes.

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
        # A database may have come with a cloned folder: no code in its schema may run.
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
            # Files that a committed state no longer names are deleted. So a commit must be durable first.
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}").fetchall()
    except BaseException:
        db.close(True)
        raise
    return db


def plain(path: Path) -> apsw.Connection:
    """A connection to a file whose schema may be damaged. It reads nothing of the file yet.

    Raises:
        apsw.Error: the file cannot be opened, or it is empty and its log is not.
    """
    _register()
    if is_emptied(path):
        raise apsw.CorruptError(EMPTIED)
    if is_frozen(path):
        return apsw.Connection(reading_uri(path), flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY, vfs=_SHIM)
    return apsw.Connection(str(path), vfs=_SHIM)


def reserve_checksums(db: apsw.Connection) -> None:
    """Makes room for checksums in the pages of a new database. An old database gets the room at its next `VACUUM`."""
    db.reserve_bytes(reserve=_CHECKSUM_NBYTES)


def has_checksums(db: apsw.Connection) -> bool:
    """Whether the pages of a database carry checksums. The database must have been read before."""
    return db.reserve_bytes() == _CHECKSUM_NBYTES


def is_emptied(path: Path) -> bool:
    """Whether a database file is empty but once held data: it has a log, or a mark of its commits. SQLite would treat
    the file as a new database and delete the log, which may hold all data.

    Raises:
        StorageError: the disk reports an error.
    """
    if not path.exists() or path.stat().st_size:
        return False
    return has_log(path) or bool(HighWaterMark(path.with_name(path.name + "-mark")).read_all())


def _register() -> None:
    """Registers the shim with SQLite, once in a process."""
    with _registering:
        if _SHIM in apsw.vfs_names():
            return
        try:
            put_below(lambda: apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs"))
        except (apsw.sqlite_extra.NotAvailable, LookupError, apsw.Error) as error:
            raise CapabilityError(
                "this build of apsw comes without cksumvfs, which verifies what is stored: install apsw from PyPI"
            ) from error
