"""Tables that the program keeps to save time: what was measured or computed once, and can be again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock, StorageError
from edge.sealed import read_sealed, write_sealed

_log = logging.getLogger("edge")


def recall(path: Path, what: str) -> dict[str, Any]:
    """The table at a path; an empty one when there is none or it cannot be read.

    A damaged table is said in the log (without a handler: on stderr) and removed. So it is said once, and whoever asked
    makes it anew.

    Args:
        what: what the table holds, for the sentence: `the measured chunk sizes`.
    """
    try:
        return read_sealed(path) or {}
    except CorruptBlock as error:
        forget(path, what, str(error))
    except StorageError as error:
        _log.warning("edge: %s; %s are found out anew", error, what)
    return {}


def forget(path: Path, what: str, reason: str) -> None:
    """Says that a table is not used, and removes it."""
    _log.warning("edge: %s; %s are found out anew", reason, what)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def remember(path: Path, content: Mapping[str, Any]) -> None:
    """Keeps a table for later. Only time depends on it: where nothing can be written, nothing is."""
    with suppress(StorageError):
        write_sealed(path, content)
