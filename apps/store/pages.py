"""Checks pages of a database file by their checksums.

SQLite's `cksumvfs` shim keeps a checksum in the last eight bytes of a page: two sums over the page's words, each added
to the other in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.apps.store.folder import log_of
from edge.apps.store.log import read_log, sums

PAGE = 4096
"""Bytes of a page in every database of this program."""

_CHECKSUM = 8
_TOGETHER = 256
"""Pages that are checked at once."""

_TRIES = 3
"""Reads of a page before it counts as damaged: another process may be writing it."""
_PAUSE_S = 0.02

_SUSPECTS = 4096
"""Pages that are waited for together. Their numbers are in memory, and every page of a file may be damaged."""

_MAGIC = b"SQLite format 3\0"
_RESERVED = 20
_COUNT = slice(28, 32)
"""Offset of the number of pages, in the first page."""


def damaged_pages(path: Path) -> Iterator[int]:
    """Numbers of the damaged pages, from 1. A page of zeros looks like a page that was never used, so it does not
    count; readers of its rows notice the loss. A page that the log holds in a newer version does not count either: a
    process that was killed during a checkpoint may have left a torn page, and the next checkpoint overwrites it.

    Raises:
        OSError: the file or its log cannot be read.
    """
    suspects: list[int] = []
    number = 1
    with path.open("rb") as file:
        while data := file.read(_TOGETHER * PAGE):
            whole = len(data) // PAGE
            suspects += (number + np.flatnonzero(~_sound(data[: whole * PAGE]))).tolist()
            number += whole
            if len(suspects) >= _SUSPECTS:
                yield from _still_damaged(path, suspects)
                suspects = []
            if len(data) % PAGE:  # an incomplete page at the end
                suspects.append(number)
                number += 1
    yield from _still_damaged(path, suspects)


def _still_damaged(path: Path, suspects: list[int]) -> Iterator[int]:
    """Those of some pages that stay damaged, and that the log does not hold."""
    for _ in range(_TRIES - 1):
        if not suspects:
            return
        time.sleep(_PAUSE_S)
        suspects = [number for number in suspects if not _sound_now(path, number)]
    log = read_log(log_of(path))
    yield from (number for number in suspects if not log.supersedes(number))


def with_checksum(page: bytes) -> bytes:
    """The page with a new checksum of its content."""
    words = np.frombuffer(page[:-_CHECKSUM], "<u4").reshape(1, -1)
    return page[:-_CHECKSUM] + sums(words).astype("<u4").tobytes()


def header_is_sound(path: Path) -> bool:
    """Whether the first page of a database file is undamaged."""
    with path.open("rb") as file:
        page = file.read(PAGE)
    return len(page) == PAGE and page.startswith(_MAGIC) and page[_RESERVED] == _CHECKSUM and bool(_sound(page)[0])


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


def _sound_now(path: Path, number: int) -> bool:
    """Whether a page is whole and undamaged now, or no longer exists because the file has become shorter."""
    with path.open("rb") as file:
        file.seek((number - 1) * PAGE)
        page = file.read(PAGE)
    return not page or (len(page) == PAGE and bool(_sound(page)[0]))


def _sound(data: bytes) -> npt.NDArray[np.bool_]:
    """Whether each of the pages in `data` [n * PAGE bytes] is undamaged: [n]."""
    words = np.frombuffer(data, "<u4").reshape(-1, PAGE // 4)
    return np.asarray((sums(words[:, :-2]) == words[:, -2:]).all(1))
