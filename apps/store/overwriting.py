"""Putting what one database holds into the place of another, in one transaction: a kill at any moment leaves one of the
two whole, and processes that have it open see the new one from then on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import apsw

from edge.apps.store.connecting import is_emptied, plain
from edge.apps.store.failures import translated
from edge.apps.store.schema_copy import make_openable
from edge.errors import StorageError
from edge.ivf.segment_writer import sync_folder

_PATIENCE_S = 30.0


def overwrite(path: Path, source: Path, *, verbs: str, unchanged: Callable[[], bool] = lambda: True) -> bool:
    """Makes the database `path` hold what `source` holds, all at once; `path` may be damaged, or not be there.

    Args:
        unchanged: asked when nobody else can write any more; if it says no, nothing is done.

    Returns:
        Whether it was done.

    Raises:
        StorageError: another process keeps writing, or the disk refuses.
    """
    with translated(path, verbs, _PATIENCE_S):
        try:
            if path.exists() and (path.stat().st_size or is_emptied(path)):
                make_openable(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        new, old = plain(source), plain(path)
        try:
            old.set_busy_timeout(int(_PATIENCE_S * 1000))
            old.execute("PRAGMA checksum_verification = OFF").fetchall()  # what is there is not read
            with old.backup("main", new, "main") as copying:
                copying.step(1)
                if not unchanged():
                    return False
                copying.step(-1)
            old.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            old.close(True)
            new.close(True)
    return True


def put_aside(path: Path, beside: tuple[str, ...]) -> Path:
    """Copies a database, and files beside it, into a new folder, and returns its copy.

    Args:
        beside: ends of the names of those files, after the database's own.

    Raises:
        StorageError: the disk refuses, or has no room.
    """
    folder = aside(path.parent)
    try:
        for end in ("", *beside):
            source = path.with_name(path.name + end)
            if source.exists():
                shutil.copy2(source, folder / source.name)
                with (folder / source.name).open("rb+") as file:
                    os.fsync(file.fileno())
        sync_folder(folder)
    except OSError as error:
        raise StorageError(f"{path} cannot be copied to {folder}: {error.strerror}") from error
    return folder / path.name


def aside(parent: Path) -> Path:
    """A new folder for what is damaged.

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
