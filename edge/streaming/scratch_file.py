"""`ScratchFile`: a temporary file of hidden states that do not fit in memory."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from edge.errors import StorageError
from edge.files.own_folder import make_folder


class ScratchFile:
    """A file without a name, with positioned reads and writes of whole ranges."""

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self._fd = descriptor
        self._path = path

    @classmethod
    def make(cls, directory: Path, nbytes: int) -> ScratchFile:
        """Makes a file of `nbytes` bytes in `directory`, and allocates its disk space.

        Raises:
            StorageError: the file cannot be made, or the disk has no space for it.
        """
        try:
            make_folder(directory)
            descriptor, name = tempfile.mkstemp(prefix="edge-states-", dir=directory)
        except OSError as error:
            raise StorageError(f"no scratch file can be made in {directory}: {error.strerror}") from error
        path: Path | None = Path(name)
        with contextlib.suppress(OSError):  # Windows cannot unlink an open file; there `close` removes it
            os.unlink(name)
            path = None
        file = cls(descriptor, path)
        try:
            _claim(descriptor, nbytes)
        except OSError as error:
            file.close()
            raise StorageError(
                f"hidden states need {nbytes / 1e6:,.0f} MB of scratch space in {directory}: {error.strerror}"
            ) from error
        return file

    def read(self, into: memoryview, offset: int) -> int:
        """Fills `into` with the bytes from `offset` on, and returns their number.

        Raises:
            StorageError: the file cannot be read, or ends too early.
        """
        done = 0
        try:
            while done < len(into):
                count = self._read_some(into[done:], offset + done)
                if count == 0:
                    raise StorageError("the scratch file of hidden states ended early; was it truncated?")
                done += count
        except OSError as error:
            raise StorageError(f"offloaded hidden states cannot be read: {error.strerror}") from error
        return done

    def write(self, data: memoryview, offset: int) -> int:
        """Writes `data` from `offset` on, and returns the number of bytes.

        Raises:
            StorageError: the file cannot be written.
        """
        done = 0
        try:
            while done < len(data):
                if hasattr(os, "pwrite"):
                    done += os.pwrite(self._fd, data[done:], offset + done)
                else:
                    os.lseek(self._fd, offset + done, os.SEEK_SET)
                    done += os.write(self._fd, data[done:])
        except OSError as error:
            raise StorageError(f"hidden states cannot be offloaded: {error.strerror}") from error
        return done

    def _read_some(self, into: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._fd, [into], offset)
        os.lseek(self._fd, offset, os.SEEK_SET)
        data = os.read(self._fd, len(into))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file, which also removes it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._path is not None:
                self._path.unlink(missing_ok=True)


def _claim(descriptor: int, nbytes: int) -> None:
    """Allocates the disk space now, so that a full disk is noticed before any work is done."""
    if hasattr(os, "posix_fallocate") and nbytes:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    # A file system that cannot allocate space in advance only gets the size.
    os.ftruncate(descriptor, nbytes)
