"""Opens files for extraction: only regular files within the size limit, and never through a symbolic link."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from edge.apps.documents.base import MAX_FILE_BYTES, MAX_TEXT_CHARS, Reason, Skipped
from edge.apps.documents.decoding import decode
from edge.apps.documents.secrets import marked
from edge.config import format_size

HEAD_BYTES = 8192
"""Bytes at the beginning of a file that decide its type."""

PASSES_DESCRIPTORS = hasattr(socket, "send_fds")

_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
)


def open_regular(path: Path) -> int:
    """Opens a regular file, without following a link or waiting for a pipe. What cannot be read is `Skipped`."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):  # Windows has no O_NOFOLLOW
            raise OSError(errno.ELOOP, "")
        if not stat.S_ISREG(mode):  # opening a device may have side effects
            raise _special()
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Skipped(Reason.SYMLINK, "a symbolic link, which is not followed") from None
        raise Skipped(Reason.UNREADABLE, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Skipped(Reason.UNREADABLE, f"cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _special()
    return descriptor


class Attempt(IntEnum):
    """The meaning of a `MemoryError`. Each attempt follows one that failed for want of memory."""

    FIRST = 0
    """It ends the attempt. The next one has more memory."""
    LAST = 1
    """It costs only the part of the file that needed the memory: a picture, a page, an attachment."""
    FRUGAL = 2
    """Parts that may need much memory are not tried: pictures, and large attachments."""


@dataclass(slots=True)
class Spent:
    """What a file and those inside it have taken: computing time for pictures, bytes of an archive's members, and the
    computing time at which these come to their end (None before the first)."""

    recognized_s: float = 0.0
    unpacked: int = 0
    until: float | None = None


class OpenedFile:
    """An open file and its first bytes. A context manager."""

    hides_secrets = True
    depth = 0
    """How many files are around it."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        descriptor: int | None = None,
        attempt: Attempt = Attempt.FIRST,
    ) -> None:
        """Opens a file as `open_regular` does, or takes an open `descriptor`, which is closed with the file."""
        self.path = path
        self.name = path.name
        self.suffix = path.suffix.lower()
        self.attempt = attempt
        self.spent = Spent()
        descriptor = open_regular(path) if descriptor is None else descriptor
        self.stream: BinaryIO = os.fdopen(descriptor, "rb")
        try:
            self.nbytes = os.fstat(descriptor).st_size
            if self.nbytes > max_bytes:
                raise Skipped(
                    Reason.TOO_LARGE,
                    f"{format_size(self.nbytes)} is more than the {format_size(max_bytes)} a file may have",
                )
            self.head = self._read(HEAD_BYTES)
            if not self.head:
                raise Skipped(Reason.EMPTY, "the file is empty")
            self.stream.seek(0)
        except BaseException:
            self.stream.close()
            raise

    def read(self) -> bytes:
        self.stream.seek(0)
        return self._read(self.nbytes)

    def text(self, *, declared: str | None = None) -> str:
        if self.nbytes > 4 * MAX_TEXT_CHARS:
            raise too_much_text()
        text = decode(self.read(), declared=declared)
        if len(text) > MAX_TEXT_CHARS:
            raise too_much_text()
        return marked(text) if self.hides_secrets else text

    def _read(self, nbytes: int) -> bytes:
        try:
            return self.stream.read(nbytes)
        except OSError as error:
            raise Skipped(Reason.UNREADABLE, f"cannot be read: {error.strerror}") from error

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()


def _special() -> Skipped:
    return Skipped(Reason.SPECIAL, "not a regular file (a pipe, a socket, a device or a folder)")


class Attached(OpenedFile):
    def __init__(self, name: str, data: bytes, *, outer: OpenedFile | None = None) -> None:
        self.attempt = Attempt.FIRST if outer is None else outer.attempt
        self.spent = Spent() if outer is None else outer.spent
        self.depth = 1 if outer is None else outer.depth + 1
        self.path = Path("attachment")
        self.name = name
        self.suffix = Path(name.replace("/", "_")).suffix.lower()
        self.stream = io.BytesIO(data)
        self.nbytes = len(data)
        self.head = data[:HEAD_BYTES]


def too_much_text() -> Skipped:
    return Skipped(Reason.TOO_LARGE, f"more than {MAX_TEXT_CHARS:,} characters of text, the most that is read")
