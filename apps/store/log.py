"""Reads SQLite's write-ahead log directly, without SQLite.

A log is a header followed by frames. A frame is a frame header and a page. The checksum in a frame header continues the
checksum of the frame before it. SQLite verifies these checksums when it recovers a log that no process has open.

SQLite's checksum consists of two sums over 32-bit words, each added to the other in turn. The `cksumvfs` shim uses it,
too. The sums are linear modulo 2^32. So the sums of many blocks are one matrix product with fixed weights.

Sources: https://sqlite.org/fileformat2.html#walformat and #checksum_algorithm
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

Sums = tuple[int, int]

_MODULUS = 1 << 32


def sums(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The two sums of each block of words [n, words], computed from a start of zero: [n, 2]."""
    return np.asarray(words @ _weights(words.shape[1]))


def continued(before: Sums, own: Sums, words: int) -> Sums:
    """The two sums of a block that continues earlier sums.

    Args:
        before: the sums before the block.
        own: the sums of the block from a start of zero, as `sums` returns them.
        words: length of the block.
    """
    (a, b), (c, d) = _carried(words)
    return (before[0] * a + before[1] * c + own[0]) % _MODULUS, (before[0] * b + before[1] * d + own[1]) % _MODULUS


@cache
def _weights(count: int) -> npt.NDArray[np.uint32]:
    """The weight of each word of a block in each of the two sums, [words, 2]."""
    weights = np.empty((count, 2), np.uint32)
    first, second = (1, 1), (0, 1)  # weights of the last pair of words
    for at in range(count - 2, -1, -2):
        weights[at], weights[at + 1] = first, second
        first, second = _stepped(first), _stepped(second)
    return weights


@cache
def _carried(count: int) -> tuple[Sums, Sums]:
    """The weight of each sum before a block in each sum after the block."""
    first, second = (1, 0), (0, 1)
    for _ in range(count // 2):
        first, second = _stepped(first), _stepped(second)
    return first, second


def _stepped(before: Sums) -> Sums:
    """The sums after a pair of zero words."""
    one = (before[0] + before[1]) % _MODULUS
    return one, (before[1] + one) % _MODULUS


HEADER = 32
"""Bytes of the log's header, before the first frame."""

FRAME = 24
"""Bytes of a frame's header, before its page."""

_SUMMED = 8
"""Bytes of a frame's header that its checksum covers besides the page."""

_HEADER = struct.Struct(">8I")
_MAGIC = 0x377F0682
"""First word of a log whose checksums read words as little-endian; the word is larger by one for big-endian."""

_VERSION = 3007000
_TOGETHER = 1 << 20
"""Bytes of frames that are read at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """The committed transactions in a log.

    Attributes:
        pages: numbers of the pages, from 1, that SQLite reads from the log and not from the database file.
        count: pages of the database after the last commit; None if the log holds no commit.
        frames: number of frames up to the last commit.
    """

    pages: frozenset[int] = frozenset()
    count: int | None = None
    frames: int = 0

    def supersedes(self, page: int) -> bool:
        """Whether SQLite no longer reads this page from the database file."""
        return page in self.pages or (self.count is not None and page > self.count)


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The header of a log.

    Attributes:
        page: bytes of a page.
        order: byte order of the words in checksums, as a numpy dtype.
        salts: eight bytes that all valid frames repeat.
        sums: the checksum that the first frame continues.
    """

    page: int
    order: str
    salts: bytes
    sums: Sums

    @classmethod
    def of(cls, data: bytes) -> LogHeader | None:
        """Parses the first bytes of a log; None if they are damaged."""
        if len(data) < HEADER:
            return None
        magic, version, page, _, _, _, *stated = _HEADER.unpack(data[:HEADER])
        if magic & ~1 != _MAGIC or version != _VERSION or page < 512 or page & (page - 1):
            return None
        order = ">u4" if magic & 1 else "<u4"
        (found,) = sums(np.frombuffer(data[:FRAME], order).reshape(1, -1).astype(np.uint32)).tolist()
        return cls(page, order, data[16:24], tuple(stated)) if found == stated else None

    @property
    def frame(self) -> int:
        """Bytes of a frame, with its page."""
        return FRAME + self.page

    def own_sums(self, frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """Checksums of whole frames [n, bytes], each computed from a start of zero: [n, 2]."""
        covered = np.concatenate((frames[:, :_SUMMED], frames[:, FRAME:]), axis=1)
        return sums(covered.view(self.order).astype(np.uint32, copy=False))

    def continued(self, before: Sums, own: Sums) -> Sums:
        """The checksum of a frame, from the checksum of the frame before it and from its own sums."""
        return continued(before, own, (_SUMMED + self.page) // 4)


def stated_sums(header: bytes) -> Sums:
    """The checksum that a frame's header states."""
    first, second = struct.unpack(">2I", header[16:24])
    return first, second


def read_log(path: Path) -> Written:
    """Reads a log as far as SQLite would recover it: up to the first damaged frame.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = LogHeader.of(file.read(HEADER))
            return Written() if header is None else _read_frames(file, header)
    except FileNotFoundError:
        return Written()


def _read_frames(file: BinaryIO, header: LogHeader) -> Written:
    pages: set[int] = set()
    waiting: list[int] = []
    count, frames, before = None, 0, header.sums
    while whole := len(data := file.read(max(1, _TOGETHER // header.frame) * header.frame)) // header.frame:
        some = np.frombuffer(data, np.uint8, whole * header.frame).reshape(whole, header.frame)
        for frame, own in zip(some[:, :FRAME], header.own_sums(some).tolist(), strict=True):
            stated = frame.tobytes()
            before = header.continued(before, own)
            if stated[8:16] != header.salts or stated_sums(stated) != before:
                return Written(frozenset(pages), count, frames)
            number, committed = struct.unpack(">2I", stated[:8])
            waiting.append(number)
            if committed:
                pages.update(waiting)
                frames += len(waiting)
                waiting.clear()
                count = committed
    return Written(frozenset(pages), count, frames)
