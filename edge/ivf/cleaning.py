"""Removing files that no committed state names: segments out of use, and what a killed process left behind."""

from __future__ import annotations

import time

from edge.errors import StorageError
from edge.ivf.manifest import Manifest
from edge.ivf.segment_writer import SUFFIX
from edge.ivf.work import Work

_SCRATCH = ".tmp"


def clean(work: Work, *, grace_seconds: float) -> None:
    """Removes retired segments that nobody in this process reads any more and that were retired so many seconds ago,
    for readers in other processes; and, while no writer can be making one, files that were never named.

    Raises:
        StorageError: the folder cannot be read.
    """
    with work.write() as db:
        manifest = Manifest(db)
        work.snapshots.current(db)  # lets go of what only an older state needed
        retired = dict(manifest.retired())
        known = {*retired, *manifest.segment_names()}
        try:
            found = [path.name for path in work.folder.iterdir()] if work.folder.exists() else []
        except OSError as error:
            raise StorageError(f"{work.folder} cannot be read: {error.strerror}") from error
        stray = [name for name in found if name not in known and name.endswith((SUFFIX, _SCRATCH))]
        removed = [name for name in stray if work.open_segments.remove(name)]
        ripe = [name for name, at in retired.items() if not 0 <= time.time() - at < grace_seconds]
        gone = [name for name in ripe if work.open_segments.remove(name)]
        manifest.forget_retired(gone)
    work.removed_files += len(removed) + len(gone)
