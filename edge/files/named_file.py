"""Files that the user names: `open_input` reads, and never waits without end for a pipe or a device; `open_output`
writes, with `write_all` unbuffered; `make_folder`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import platformdirs

from edge.errors import InputError

WRITER_SECONDS = 10.0
"""Seconds to wait for the writer of a named pipe."""

_LOOK_SECONDS = 0.02

_PIECE = 1 << 16
"""Bytes of a skipped line that are read at once."""

SMALL = 8 << 20
"""Largest size in bytes of a file that is small by its nature: settings, tables, marks, lists of files."""


def open_input(path: str | os.PathLike[str], *, pipes: bool = True) -> BinaryIO:
    """Opens a file, or with `pipes` a pipe that has a writer, readable once. OSError, with a `strerror`."""
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


def read_input(path: str | Path, *, pipes: bool = True, most: int | None = None) -> bytes:
    """Reads a whole file, opened as `open_input` does. OSError if it is larger than `most` bytes."""
    with open_input(path, pipes=pipes) as file:
        data = file.read(-1 if most is None else most + 1)
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes, and no such file is", os.fspath(path))
    return data


def read_stdin(most: int = SMALL) -> bytes:
    """Reads stdin to its end. OSError if there are more than `most` bytes."""
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return data


def read_text(name: str) -> str:
    what = "stdin" if name == "-" else name
    try:
        return (read_stdin() if name == "-" else read_input(name, most=SMALL)).decode()
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not valid UTF-8 (byte {error.start})") from None


def read_line(file: BinaryIO, most: int) -> tuple[bytes, int]:
    """A line, of which `most` bytes with its end are kept, and its whole length in bytes, which is 0 at the end."""
    line = piece = file.readline(most)
    length = len(line)
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(_PIECE)
        length += len(piece)
    return line, length


def read_small(path: Path) -> bytes:
    """Reads a small file of this program. It may have come with another person's folder, and be anything."""
    return read_input(path, pipes=False, most=SMALL)


def _first_byte(descriptor: int, path: str | os.PathLike[str]) -> bytes:
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


_SYSTEM = ("/dev/", "/proc/")
"""Folders whose files are devices or open files, such as `/dev/stdout`."""


class Unbuffered(Protocol):
    """A file whose `write` may take a part only, such as that of `open(..., buffering=0)`."""

    def write(self, data: memoryview, /) -> int | None:
        """Returns how many bytes were taken."""


def write_all(file: Unbuffered, data: bytes | memoryview) -> None:
    """Writes all bytes of `data` (a view must be of bytes), in as many calls as it takes."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += file.write(view[done:]) or 0


@contextlib.contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file that replaces an older one when it is complete; after an error the older file stays. A link's target
    is replaced; a device, an open file, and a file in a folder where none can be created are written to directly."""
    target = Path(os.path.realpath(path))
    if _is_direct(Path(path)) or not os.access(target.parent, os.W_OK):
        with open(path, "wb") as file:
            yield file
        return
    # The draft has a short name of its own, because the target's name may be as long as the file system allows.
    draft = target.with_name(f".edge-{os.getpid()}-{threading.get_ident()}")
    try:
        with open(draft, "wb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, draft)
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _is_direct(path: Path) -> bool:
    return str(path.absolute()).startswith(_SYSTEM) or (path.exists() and not stat.S_ISREG(path.stat().st_mode))


_FOR_ONE = 0o700
_FOR_ALL = 0o777
"""The user's umask is subtracted from this."""


def make_folder(path: Path) -> None:
    """Makes a folder and its parents. The program's own can be read by the user only (XDG specification)."""
    path = path.absolute()
    above = (path, *path.parents)
    mode = _FOR_ONE if any(own in above for own in _own()) else _FOR_ALL
    missing = [folder for folder in above if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def _own() -> list[Path]:
    names = ("user_data_path", "user_config_path", "user_state_path", "user_cache_path")
    return [Path(getattr(platformdirs, name)("edge-rag", appauthor=False)).absolute() for name in names]
