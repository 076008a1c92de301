"""`open_output`: the one way in which a file that the user names is opened for writing."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that takes the place of an older one when it is complete; until then, and after an error, the older one is
    there. A link stays, and the file that it leads to is replaced. A device, such as `/dev/null`, is written to and
    never replaced.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    target = Path(os.path.realpath(path))
    if (target.exists() and not stat.S_ISREG(target.stat().st_mode)) or not os.access(target.parent, os.W_OK):
        with open(target, "wb") as file:
            yield file
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, draft)
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
