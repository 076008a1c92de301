"""`open_output` opens files that the user names for writing; `write_all` is unbuffered; `make_folder`."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import platformdirs

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
