"""Tables stored to save time: measured or computed once, they can be made again at any time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock, StorageError
from edge.files.sealed import read_sealed, write_sealed

_log = logging.getLogger("edge")


def recall(path: Path, what: str) -> dict[str, Any]:
    """The table at a path; an empty one if there is none or it cannot be read.

    A damaged table is reported in the log (without a handler: on stderr) and removed. So it is reported once, and the
    caller makes a new one.

    Args:
        what: the content of the table, for the message: `the measured chunk sizes`.
    """
    try:
        return read_sealed(path) or {}
    except CorruptBlock as error:
        forget(path, what, str(error))
    except StorageError as error:
        _log.warning("edge: %s; %s are found out anew", error, what)
    return {}


def forget(path: Path, what: str, reason: str) -> None:
    """Logs that a table is not used, and removes it."""
    _log.warning("edge: %s; %s are found out anew", reason, what)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def remember(path: Path, content: Mapping[str, Any]) -> None:
    """Stores a table for later. If that fails, nothing is stored, since only time depends on it."""
    with suppress(StorageError):
        write_sealed(path, content)
