"""Pages of a database file and their checksums.

The checksum is that of SQLite's `cksumvfs` shim: two sums over the words of a page, each added to the other in turn, in
the page's last eight bytes. Here the sums are one product with fixed weights, for many pages at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

PAGE = 4096
"""Bytes of a page, in every database that is made here."""

_CHECKSUM = 8
_TOGETHER = 256
"""Pages that are looked at together."""

_TRIES = 3
"""Looks at a page before it counts as damaged: another process may be writing it."""
_PAUSE_S = 0.02

_MAGIC = b"SQLite format 3\0"
_RESERVED = 20
_COUNT = slice(28, 32)
"""Where the first page states the number of pages."""


def damaged_pages(path: Path) -> Iterator[int]:
    """Numbers of the pages, from 1, that are not what was written. A page of zeros cannot be told from one that was
    never used; what was in it is missed where it is read.

    Raises:
        OSError: the file cannot be read.
    """
    number = 1
    with path.open("rb") as file:
        while data := file.read(_TOGETHER * PAGE):
            whole = len(data) // PAGE
            for at in np.flatnonzero(~_sound(data[: whole * PAGE])).tolist():
                if not _sound_later(path, number + at):
                    yield number + at
            if len(data) % PAGE:
                yield number + whole
            number += whole + 1


def with_checksum(page: bytes) -> bytes:
    """A page with the checksum of what it holds."""
    sums = _sums(np.frombuffer(page, "<u4").reshape(1, -1)).astype("<u4").tobytes()
    return page[:-_CHECKSUM] + sums


def header_is_sound(path: Path) -> bool:
    """Whether the first page of a database file is what was written."""
    with path.open("rb") as file:
        page = file.read(PAGE)
    return len(page) == PAGE and page.startswith(_MAGIC) and page[_RESERVED] == _CHECKSUM and bool(_sound(page)[0])


def missing_bytes(path: Path) -> int | None:
    """How many bytes a database file is shorter than its first page states, 0 for a whole file; None if the first page
    is not what was written.

    Raises:
        OSError: the file cannot be read.
    """
    missing = 0
    for _ in range(_TRIES):  # another process may be making it longer, which writes the first page first
        if not header_is_sound(path):
            return None
        with path.open("rb") as file:
            pages = int.from_bytes(file.read(_COUNT.stop)[_COUNT], "big")
        missing = max(0, pages * PAGE - path.stat().st_size)
        if not missing:
            break
        time.sleep(_PAUSE_S)
    return missing


def _sound_later(path: Path, number: int) -> bool:
    for _ in range(_TRIES):
        with path.open("rb") as file:
            file.seek((number - 1) * PAGE)
            page = file.read(PAGE)
        if len(page) < PAGE or _sound(page)[0]:  # shorter now: nothing of it is left to be damaged
            return True
        time.sleep(_PAUSE_S)
    return False


def _sound(data: bytes) -> npt.NDArray[np.bool_]:
    """Of whole pages, which are what was written."""
    words = np.frombuffer(data, "<u4").reshape(-1, PAGE // 4)
    return np.asarray((_sums(words) == words[:, -2:]).all(1))


def _sums(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The two sums of pages [n, words]: [n, 2]."""
    return np.asarray(words[:, :-2] @ _weights())


@cache
def _weights() -> npt.NDArray[np.uint32]:
    """How often each word of a page counts in each of the two sums, [words - 2, 2]."""
    count = (PAGE - _CHECKSUM) // 4
    weights = np.empty((count, 2), np.uint32)
    first, second = (1, 1), (0, 1)  # of the last pair of words
    for at in range(count - 2, -1, -2):
        weights[at], weights[at + 1] = first, second
        first, second = _stepped(first), _stepped(second)
    return weights


def _stepped(sums: tuple[int, int]) -> tuple[int, int]:
    """What a pair of zeros makes of the sums."""
    one = (sums[0] + sums[1]) % (1 << 32)
    return one, (sums[1] + one) % (1 << 32)
