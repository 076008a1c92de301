"""Stores in folders that are not writable, such as on a read-only disk: they can be read, and no file changes."""

from __future__ import annotations

import os
from pathlib import Path

from edge.apps.store.log import log_of


def can_be_written(folder: Path) -> bool:
    """Whether files in an existing folder can be made and changed."""
    return os.access(folder, os.W_OK)


def has_log(path: Path) -> bool:
    """Whether a write-ahead log that is not empty lies beside a database file."""
    try:
        return log_of(path).stat().st_size > 0
    except OSError:
        return False


def is_frozen(path: Path) -> bool:
    """Whether a database file must be opened as immutable. Readers of a log write a shared-memory file beside it, which
    is impossible in a folder that is not writable."""
    return path.exists() and not can_be_written(path.parent) and not has_log(path)


def reading_uri(path: Path) -> str:
    """The SQLite URI that opens a database file for reading."""
    return path.absolute().as_uri() + ("?mode=ro&immutable=1" if is_frozen(path) else "?mode=ro")
