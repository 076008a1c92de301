"""`open_output`: the one way in which a file that the user names is opened for writing."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SYSTEM = ("/dev/", "/proc/")
"""Folders whose files stand for devices and for open files, such as `/dev/stdout`."""


@contextlib.contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of an older one when it is complete; until then, and after an error, the older
    one is there. A link stays, and the file that it leads to is replaced.

    A device such as `/dev/null`, an open file such as `/dev/stdout`, and a file in a folder that takes no new ones are
    written to directly and never replaced.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    if _is_direct(Path(path)) or not os.access(target.parent, os.W_OK):
        with open(path, "wb") as file:
            yield file
        return
    # Not the file's own name and more: that may be as long as the file system allows.
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
