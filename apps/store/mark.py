"""`HighWaterMark`: a small file beside a database that remembers the number of its last commit.

A damaged log of SQLite ends at its first wrong frame, and the commits behind that are gone without an error. The mark
is how this is noticed. It is written after each commit and only made durable when it is new: it survives a killed
process, and after a power failure it is at worst too low, which notices less and never raises a false alarm.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from edge.errors import StorageError
from edge.ivf.segment_writer import sync_folder

_SLOT = struct.Struct("<8s16sqdI")
"""Magic, lineage of the database, number of the commit, when the system was started, checksum of all these."""

_MAGIC = b"edgemark"
_SLOTS = 2
"""Written in turn, so that one that is torn leaves the other."""

_STRIDE = 64


class HighWaterMark:
    """Reads and writes one mark. Any number of processes may write it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_all(self) -> dict[bytes, tuple[int, float]]:
        """By the lineage of a database its highest commit, and when the system that made it was started (seconds since
        1970); empty if there is no mark.

        Raises:
            StorageError: the disk reports an error.
        """
        try:
            data = self.path.read_bytes()
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
        """Whether each slot that was ever written is what was written.

        Raises:
            OSError: the file cannot be read.
        """
        data = self.path.read_bytes()
        for slot in range(_SLOTS):
            piece = data[slot * _STRIDE : slot * _STRIDE + _SLOT.size]
            if piece.strip(b"\0") and (
                len(piece) < _SLOT.size or _SLOT.unpack(piece)[-1] != zlib.crc32(piece[:-4]) or piece[:8] != _MAGIC
            ):
                return False
        return len(data) == _SLOTS * _STRIDE

    def make(self) -> bool:
        """Makes an empty mark if there is none, or a damaged one; returns whether it did.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            if self.path.exists() and self.sound():
                return False
            with self.path.open("wb") as file:
                file.write(bytes(_SLOTS * _STRIDE))
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
            return True
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error

    def write(self, lineage: bytes, number: int, started: float) -> None:
        """Notes that a commit is durable.

        Raises:
            OSError: the disk refuses.
        """
        body = _SLOT.pack(_MAGIC, lineage, number, started, 0)[:-4]
        with self.path.open("r+b", buffering=0) as file:
            file.seek(number % _SLOTS * _STRIDE)
            file.write(body + struct.pack("<I", zlib.crc32(body)))
