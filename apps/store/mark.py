"""`HighWaterMark`: a small file beside a database that records the number of the last commit.

SQLite ends the recovery of a damaged log at the first wrong frame, and later commits are lost without an error. The
mark reveals this loss. It is written after each commit, but only a new mark is flushed to disk. It therefore survives a
killed process. After a power failure it may be too low; then some lost commits go unnoticed, but no false alarm is
raised.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
import zlib
from pathlib import Path

from edge.errors import StorageError
from edge.files.input_file import read_small
from edge.ivf.storage.segment_writer import sync_folder

_SLOT = struct.Struct("<8s16sqdI")
"""Magic, lineage of the database, number of the commit, start time of the system, checksum of all these."""

_MAGIC = b"edgemark"
_SLOTS = 2
"""Commits write the slots in turn, so a torn write damages only one of them."""

_STRIDE = 64


class HighWaterMark:
    """Reads and writes one mark. Any number of processes may write the same mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_all(self) -> dict[bytes, tuple[int, float]]:
        """Maps the lineage of each database to its highest commit and to the start time (seconds since 1970) of the
        system that made it. Empty if there is no mark.

        Raises:
            StorageError: the disk reports an error.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error
        found: dict[bytes, tuple[int, float]] = {}
        for slot in range(_SLOTS):
            piece = data[slot * _STRIDE : slot * _STRIDE + _SLOT.size]
            if len(piece) < _SLOT.size:
                continue
            magic, lineage, number, started, checksum = _SLOT.unpack(piece)
            if magic == _MAGIC and checksum == zlib.crc32(piece[:-4]):
                found[lineage] = max(found.get(lineage, (0, 0.0)), (number, started))
        return found

    def sound(self) -> bool:
        """Whether the mark holds a commit, and each slot is either unused or undamaged.

        Raises:
            OSError: the file cannot be read.
        """
        data = self._read()
        if not data.strip(b"\0"):
            return False
        for slot in range(_SLOTS):
            piece = data[slot * _STRIDE : (slot + 1) * _STRIDE]
            stated, rest = piece[: _SLOT.size], piece[_SLOT.size :]
            written = len(stated) == _SLOT.size and stated[:8] == _MAGIC
            right = written and _SLOT.unpack(stated)[-1] == zlib.crc32(stated[:-4]) and not rest.strip(b"\0")
            if piece.strip(b"\0") and not right:
                return False
        return len(data) == _SLOTS * _STRIDE

    def _read(self) -> bytes:
        try:
            return read_small(self.path)
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.EINVAL):  # a device or a foreign file: treat it as a damaged mark
                return b""
            raise

    def make(self, lineage: bytes, number: int, started: float) -> bool:
        """Makes a mark of a commit if the mark is missing or damaged; returns whether it made one.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            if self.path.exists() and self.sound():
                return False
            data = bytearray(_SLOTS * _STRIDE)
            place = number % _SLOTS * _STRIDE
            data[place : place + _SLOT.size] = _packed(lineage, number, started)
            # A mark without a commit would count as damaged, so it is written under another name first.
            draft = self.path.with_name(f"{self.path.name}-{secrets.token_hex(4)}.tmp")
            try:
                with draft.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(self.path.parent)
            return True
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error

    def write(self, lineage: bytes, number: int, started: float) -> None:
        """Records that a commit is durable.

        Raises:
            OSError: the disk refuses.
        """
        with self.path.open("r+b", buffering=0) as file:
            file.seek(number % _SLOTS * _STRIDE)
            file.write(_packed(lineage, number, started))


def _packed(lineage: bytes, number: int, started: float) -> bytes:
    """The bytes of a slot."""
    body = _SLOT.pack(_MAGIC, lineage, number, started, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))
