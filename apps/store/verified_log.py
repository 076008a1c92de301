"""Verifies every page that SQLite reads from its write-ahead log.

SQLite verifies a log when it recovers a log that no process has open, and `cksumvfs` verifies the database file.
Neither verifies later reads of the log. So this layer, which lies below both, compares each page with the checksum in
the header of its frame. A checkpoint reads the log through the layer as well, so it moves no damaged page into the
database file.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import numpy as np

from edge.apps.store.log import FRAME, HEADER, LogHeader, stated_sums

NAME = "edge-log"

_this_thread = threading.local()

_SALTS = slice(8, 16)
_NO_SALTS = bytes(8)
"""Placeholder that SQLite writes instead of the salts if it writes the checksum only at the commit."""


def put_below(load: Callable[[], None]) -> None:
    """Registers the layer and calls `load`. `load` puts a shim above SQLite's default VFS, which is the layer
    meanwhile, and makes the shim the default."""
    system = apsw.vfs_names()[0]
    layer = _Layer(system)
    # The shim refers to the layer for the life of the process, even while the interpreter clears its modules.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(layer))
    apsw.set_default_vfs(NAME)
    try:
        load()
    except BaseException:
        apsw.set_default_vfs(system)
        raise


@contextmanager
def unverified() -> Iterator[None]:
    """Turns verification off for this thread, so that `overwrite` can replace damaged pages."""
    _this_thread.unverified = True
    try:
        yield
    finally:
        _this_thread.unverified = False


class _Layer(apsw.VFS):
    """Opens files as the system does, except that logs are opened as `_VerifiedLog`."""

    def __init__(self, system: str) -> None:
        super().__init__(NAME, system)
        self._system = system

    def xFullPathname(self, name: str) -> str:
        """Called by SQLite. If the path is a symbolic link, the system's VFS reports it by a code that apsw raises as
        an error."""
        try:
            return super().xFullPathname(name)
        except apsw.Error:
            return os.path.realpath(name)

    def xSleep(self, microseconds: int) -> int:
        """Called by SQLite while it waits for a lock. apsw's own method keeps the interpreter's lock for as long, so
        that every thread of the process would wait."""
        time.sleep(microseconds / 1e6)
        return microseconds

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Called by SQLite."""
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return _VerifiedLog(self._system, name, flags)
        kind = _ReadOnly if flags[0] & apsw.SQLITE_OPEN_READONLY else apsw.VFSFile
        return kind(self._system, name, flags)


class _ReadOnly(apsw.VFSFile):
    """A database file that is open for reading only."""

    def xLock(self, level: int) -> None:
        """Called by SQLite. When SQLite closes the file, it asks for a writer's lock and accepts a busy answer. The
        system refuses that lock with an I/O error instead, which would be raised at closing."""
        try:
            super().xLock(level)
        except apsw.IOError as error:
            raise apsw.BusyError("it is open for reading") from error


class _VerifiedLog(apsw.VFSFile):
    """The log of one connection."""

    def __init__(self, system: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(system, name, flags)
        self._raw = b""
        self._header: LogHeader | None = None
        # A transaction that does not fit the page cache writes pages to the log before it commits. If it writes such a
        # page again, SQLite computes the frame's checksum only at the commit. Until then, a CRC of the page is kept
        # here.
        self._unfinished: dict[int, int] = {}
        self._headed = -1

    def xRead(self, amount: int, offset: int) -> bytes:
        """Called by SQLite. For a damaged page it returns no bytes, as if the log were too short. An exception would
        also be raised in places where SQLite can go on without the page, such as at closing."""
        data = super().xRead(amount, offset)
        # Reads of another size belong to a recovery, which verifies the frames itself.
        if amount < 512 or amount & (amount - 1) or len(data) < amount:
            return data
        if getattr(_this_thread, "unverified", False):
            return data
        raw = super().xRead(HEADER, 0)
        if raw != self._raw:
            self._raw, self._header = raw, LogHeader.of(raw)
        header = self._header
        if header is None:
            return b""
        number, place = divmod(offset - HEADER, header.frame)
        if place == FRAME and amount == header.page and not self._is_sound(header, number, data):
            return b""
        return data

    def xWrite(self, data: bytes, offset: int) -> None:
        """Called by SQLite."""
        super().xWrite(data, offset)
        if offset == 0:
            self._unfinished.clear()
            self._raw, self._header = data, LogHeader.of(data)
        if self._header is None:
            return
        number, place = divmod(offset - HEADER, self._header.frame)
        if place == 0 and len(data) == FRAME:
            self._headed = number if data[_SALTS] != _NO_SALTS else -1
            if self._headed >= 0:
                self._unfinished.pop(number, None)
        elif place == FRAME and len(data) == self._header.page:
            if self._headed != number:
                self._unfinished[number] = zlib.crc32(data)
            self._headed = -1

    def xSync(self, flags: int) -> None:
        """Called by SQLite, for example at the end of a commit."""
        super().xSync(flags)
        self._unfinished.clear()

    def _is_sound(self, header: LogHeader, number: int, page: bytes) -> bool:
        unfinished = self._unfinished.get(number)
        if unfinished is not None and unfinished == zlib.crc32(page):
            return True
        before = header.sums
        start = HEADER + number * header.frame
        if number:
            before = stated_sums(super().xRead(FRAME, start - header.frame))
        stated = super().xRead(FRAME, start)
        if len(stated) < FRAME or stated[_SALTS] != header.salts:
            return False
        frame = np.frombuffer(stated + page, np.uint8).reshape(1, -1)
        ((first, second),) = header.own_sums(frame).tolist()
        return header.continued(before, (first, second)) == stated_sums(stated)
