"""`open_input`: the one way in which a file that the user names is opened for reading. It never waits for ever.

Opening a named pipe waits until somebody writes into it, and reading a device may never end. A pipe that somebody
writes into is read, as a shell's `<(command)` wants it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

WRITER_SECONDS = 10.0
"""How long a named pipe may be without anybody who writes into it."""

_LOOK_SECONDS = 0.02


def open_input(path: str | os.PathLike[str], *, pipes: bool = True) -> BinaryIO:
    """Opens a file, or a pipe that somebody writes into.

    Args:
        pipes: take a pipe, too; a pipe is read from its beginning to its end only.

    Raises:
        OSError: it cannot be opened, is a folder, a device or a socket, or nobody writes into the pipe; `strerror` says
            so.
    """
    if os.name == "nt":
        return open(path, "rb")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if stat.S_ISFIFO(mode) and pipes:
            first = _first_byte(descriptor, path)
            os.set_blocking(descriptor, True)
            return io.BufferedReader(_Pipe(descriptor, first))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a socket and not a file", os.fspath(path))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: str | Path, *, pipes: bool = True) -> bytes:
    """All of a file, opened as `open_input` does.

    Raises:
        OSError: as `open_input`, or the disk reports an error.
    """
    with open_input(path, pipes=pipes) as file:
        return file.read()


def _first_byte(descriptor: int, path: str | os.PathLike[str]) -> bytes:
    """The first byte of a pipe, or none where its writer has not written yet, or has gone."""
    end = time.monotonic() + WRITER_SECONDS
    while time.monotonic() < end:
        try:
            first = os.read(descriptor, 1)
        except BlockingIOError:  # there is a writer
            return b""
        if first:
            return first
        time.sleep(_LOOK_SECONDS)
    raise OSError(errno.EPIPE, f"it is a pipe, and nobody has written into it for {WRITER_SECONDS:g} s", str(path))


class _Pipe(io.RawIOBase):
    """A pipe of which one byte has been read already."""

    def __init__(self, descriptor: int, first: bytes) -> None:
        self._descriptor = descriptor
        self._first = first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._first:
            buffer[0], self._first = self._first[0], b""
            return 1
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)
