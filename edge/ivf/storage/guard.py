"""`Guard`: a lock file that one process at a time can hold; the system unlocks it when that process dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from edge.errors import StorageError


class Guard:
    """A context manager; `held` says whether the lock was free. It never waits."""

    def __init__(self, path: Path) -> None:
        self.held = False
        self._path = path
        self._fd = -1

    def __enter__(self) -> Guard:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be opened: {error.strerror}") from error
        self.held = _lock(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held = False
        os.close(self._fd)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
