"""Replaces the content of one database by that of another in one transaction. A kill at any moment leaves either the
old or the new content whole. Processes that have the database open see the new content afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import apsw

from edge.apps.store.connections import plain
from edge.apps.store.failures import is_refusal, translated
from edge.apps.store.folder import log_of
from edge.apps.store.salvage import move_log
from edge.errors import StorageError, as_storage_error
from edge.files.sealed import flush

_PATIENCE_S = 30.0
_PIECE = 1 << 20

_LOG_PATIENCE_MS = 2_000
"""How long to wait for readers before the log is emptied."""


def overwrite(path: Path, source: Path, *, verbs: str, ready: Callable[[], bool] = lambda: True) -> bool:
    """Replaces the content of the database `path` by that of `source`, all at once. `path` may be damaged or missing.
    If SQLite cannot open it, no process can use it, and its file is replaced.

    Args:
        ready: called when no other process can write any more; if it returns False, nothing is replaced.

    Returns:
        Whether the content was replaced.

    Raises:
        StorageError: another process keeps writing, or the disk refuses.
    """
    with translated(path, verbs, _PATIENCE_S):
        try:
            return _overwritten(path, source, ready)
        except apsw.Error as error:
            if is_refusal(error):
                raise
        ready()  # nobody can write to a file that SQLite does not open, so the answer is known
        with as_storage_error(f"{path} cannot be written"):
            # SQLite would move a log that is left behind into the new file. Its pages are moved into the old one before
            # it is removed, so that a kill in between loses none.
            move_log(path)
            for beside in (log_of(path), path.with_name(path.name + "-shm")):
                beside.unlink(missing_ok=True)
            copy_whole(source, path)
    return True


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file, and waits until the copy is durable under its name.

    Raises:
        OSError: the disk refuses.
    """
    partial = target.with_name(target.name + ".tmp")
    with source.open("rb") as old, partial.open("wb") as new:
        shutil.copyfileobj(old, new, _PIECE)
        new.flush()
        os.fsync(new.fileno())
    partial.replace(target)
    flush(target.parent)


def _overwritten(path: Path, source: Path, ready: Callable[[], bool]) -> bool:
    """Copies the pages of `source` in one transaction of `path`; returns whether it did. Raises apsw's errors."""
    new, old = plain(source), plain(path)
    try:
        old.set_busy_timeout(int(_PATIENCE_S * 1000))
        with old.backup("main", new, "main") as copying:
            copying.step(1)
            if not ready():
                return False
            copying.step(-1)
        # A recovery of a damaged log would stop before the pages that were just written. So empty the log.
        old.set_busy_timeout(_LOG_PATIENCE_MS)
        with suppress(apsw.BusyError):
            old.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        old.close(True)
        new.close(True)
    return True


def put_aside(path: Path) -> Path:
    """Copies a database and its log into a new folder; returns the path of the copied database.

    Raises:
        StorageError: the disk refuses, or has no room.
    """
    folder = aside(path.parent)
    with as_storage_error(f"{path} cannot be copied to {folder}"):
        for source in (path, log_of(path)):
            if source.exists():
                shutil.copy2(source, folder / source.name)
                flush(folder / source.name)
        flush(folder)
    return folder / path.name


def aside(parent: Path) -> Path:
    """Makes a new folder for copies of damaged files.

    Raises:
        StorageError: it cannot be made.
    """
    name = f"damaged-{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(100):
        folder = parent / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror}") from error
        return folder
    raise StorageError(f"{parent} has no room for one more folder of damaged files")
