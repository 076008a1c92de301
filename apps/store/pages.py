"""The size that a database file should have, and what its first page says of it."""

from __future__ import annotations

import time
from pathlib import Path

from edge.apps.store.folder import log_of
from edge.apps.store.log import read_log

PAGE = 4096
"""Bytes of a page in every database of this program."""

_RESERVED_NBYTES = 8

_TRIES = 3
"""Reads of a file before it counts as cut off: another process may be writing it."""
_PAUSE_S = 0.02

_MAGIC = b"SQLite format 3\0"
_RESERVED = 20
_COUNT = slice(28, 32)
"""Offset of the number of pages, in the first page."""


def header_is_sound(path: Path) -> bool:
    """Whether the header of a database file is that of ours."""
    with path.open("rb") as file:
        page = file.read(PAGE)
    return len(page) == PAGE and page.startswith(_MAGIC) and page[_RESERVED] == _RESERVED_NBYTES


def missing_bytes(path: Path) -> int | None:
    """How many bytes a database file is shorter than its first page states: 0 for a whole file, None if the first page
    is damaged. `lost_pages` says whether the missing bytes are a loss.

    Raises:
        OSError: the file cannot be read.
    """
    return max(0, _stated_pages(path) * PAGE - path.stat().st_size) if header_is_sound(path) else None


def lost_pages(path: Path) -> int:
    """How many pages are missing at the end of a database file. Pages that the log holds do not count. If neither the
    log nor an undamaged first page states the number of pages, the result is 0; then the first page counts as damaged.

    Raises:
        OSError: the file or its log cannot be read.
    """
    lost = 0
    for tried in range(_TRIES):  # a process that extends the file writes the first page first
        if tried:
            time.sleep(_PAUSE_S)
        log = read_log(log_of(path))
        count = log.count or (_stated_pages(path) if header_is_sound(path) else 0)
        lost = sum(not log.supersedes(page) for page in range(path.stat().st_size // PAGE + 1, count + 1))
        if not lost:
            break
    return lost


def _stated_pages(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(_COUNT.stop)[_COUNT], "big")
