"""Pages of a database file: their checksums, and a copy of the first one, without which SQLite opens nothing.

The checksum is that of SQLite's `cksumvfs` shim: two sums over the words of a page, each added to the other in turn, in
the page's last eight bytes. Here the sums are one product with fixed weights, for many pages at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.ivf.segment_writer import sync_folder

PAGE = 4096
"""Bytes of a page, in every database that is made here."""

_CHECKSUM = 8
_TOGETHER = 256
"""Pages that are looked at together."""

_TRIES = 3
"""Looks at a page before it counts as damaged: another process may be writing it."""

_MAGIC = b"SQLite format 3\0"
_SIZE, _CHANGE, _VALID_FOR, _RESERVED = slice(28, 32), slice(24, 28), slice(92, 96), 20


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


def keep_header(path: Path) -> None:
    """Copies the first page of a database, which says where its tables begin, into a file beside it.

    Raises:
        OSError: the disk refuses.
    """
    with path.open("rb") as file:
        page = file.read(PAGE)
    if len(page) != PAGE or not _sound(page)[0]:
        return
    new = _copy_of(path).with_name(_copy_of(path).name + ".tmp")
    with new.open("wb") as file:
        file.write(page)
        file.flush()
        os.fsync(file.fileno())
    new.replace(_copy_of(path))
    sync_folder(path.parent)


def header_is_kept(path: Path) -> bool:
    """Whether there is a sound copy of the first page of a database."""
    return kept_header(path) is not None


def kept_header(path: Path) -> bytes | None:
    """The copy of the first page, if it is what was written."""
    try:
        page = _copy_of(path).read_bytes()
    except OSError:
        return None
    return page if len(page) == PAGE and page.startswith(_MAGIC) and _sound(page)[0] else None


def put_header(path: Path, page: bytes) -> None:
    """Puts a copy of the first page back, in a database file that is as long as its other pages say.

    Raises:
        OSError: the disk refuses.
    """
    new = bytearray(page)
    new[_SIZE] = (path.stat().st_size // PAGE).to_bytes(4, "big")
    new[_VALID_FOR] = new[_CHANGE]
    new[-_CHECKSUM:] = _sums(np.frombuffer(bytes(new), "<u4").reshape(1, -1)).astype("<u4").tobytes()
    with path.open("r+b") as file:
        file.write(new)


def header_is_sound(path: Path) -> bool:
    """Whether the first page of a database file is what was written."""
    with path.open("rb") as file:
        page = file.read(PAGE)
    return len(page) == PAGE and page.startswith(_MAGIC) and page[_RESERVED] == _CHECKSUM and bool(_sound(page)[0])


def _copy_of(path: Path) -> Path:
    return path.with_name(path.name + "-header")


def _sound_later(path: Path, number: int) -> bool:
    for _ in range(_TRIES):
        with path.open("rb") as file:
            file.seek((number - 1) * PAGE)
            page = file.read(PAGE)
        if len(page) < PAGE or _sound(page)[0]:  # shorter now: nothing of it is left to be damaged
            return True
        time.sleep(0.02)
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
