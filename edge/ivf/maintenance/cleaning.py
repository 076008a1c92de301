"""Removal of files that no committed state names: retired segments, and leftovers of a killed process."""

from __future__ import annotations

import re
import time

from edge.errors import StorageError
from edge.ivf.maintenance.work import Work
from edge.ivf.storage.manifest import Manifest

_OURS = re.compile(r"[0-9a-f]{8,}(?:\.blk|\.blk\.tmp|\.tmp|-[0-9]+\.run\.tmp)")
"""File names that this package makes. The folder may be a link to a folder with other people's files."""


def clean(work: Work, *, grace_seconds: float) -> None:
    """Removes retired segments, and files that were never named.

    A segment is removed if this process does not have it open and it was retired at least `grace_seconds` ago. Until
    then a reader whose transaction began earlier may still open it. Files that no state ever named are removed in a
    write transaction, so that no writer can be making one.

    Raises:
        StorageError: the folder cannot be read.
    """
    with work.write() as db:
        manifest = Manifest(db)
        work.snapshots.current(db)  # releases segments that only an older state needed
        retired = dict(manifest.retired())
        known = {*retired, *manifest.segment_names()}
        try:
            found = [path.name for path in work.folder.iterdir()] if work.folder.exists() else []
        except OSError as error:
            raise StorageError(f"{work.folder} cannot be read: {error.strerror}") from error
        stray = [name for name in found if name not in known and _OURS.fullmatch(name)]
        removed = [name for name in stray if work.open_segments.remove(name)]
        ripe = [name for name, at in retired.items() if not 0 <= time.time() - at < grace_seconds]
        gone = [name for name in ripe if work.open_segments.remove(name)]
        manifest.forget_retired(gone)
    work.removed_files += len(removed) + len(gone)
