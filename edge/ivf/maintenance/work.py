"""`Work`: the data that the steps of one maintenance share, and the figures they report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.base import Codecs, CodecSpec, IndexOptions
from edge.ivf.maintenance.rewriting import Copy, Source
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import OpenSegments
from edge.ivf.storage.snapshots import Snapshots
from edge.trace import Trace

Write = Callable[[], AbstractContextManager[Connection]]
Progress = Callable[[str, int, int], None]


class Stopped(Exception):
    """The caller has asked to stop, or another state is in place. Committed steps stay, and unfinished files are
    removed."""


@dataclass(slots=True)
class Work:
    """One run of maintenance.

    Attributes:
        write: opens a short write transaction.
        flushed, merged, reclaimed, split, trained, removed_files: see `MaintenanceReport`.
    """

    snapshots: Snapshots
    open_segments: OpenSegments
    codecs: Codecs
    options: IndexOptions
    budget: MemoryBudget
    trace: Trace
    write: Write
    full: bool = False
    stop: threading.Event | None = None
    progress: Progress | None = None
    flushed: int = field(default=0, init=False)
    merged: int = field(default=0, init=False)
    reclaimed: int = field(default=0, init=False)
    split: int = field(default=0, init=False)
    trained: bool = field(default=False, init=False)
    removed_files: int = field(default=0, init=False)

    @property
    def folder(self) -> Path:
        return self.open_segments.folder

    def check(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Reports the progress of a stage.

        Raises:
            Stopped: the caller has asked to stop.
        """
        if self.stop is not None and self.stop.is_set():
            raise Stopped
        if self.progress is not None:
            self.progress(stage, done, total)

    def sources(self, manifest: Manifest) -> dict[str, Source]:
        """All segments by name, oldest first, each with its rows that are deleted now."""
        return {
            name: Source(segment, manifest.all_deleted_rows(name))
            for name, segment in self.snapshots.segments(manifest).items()
        }

    def check_state(self, manifest: Manifest, training: int, sources: Collection[Source] = ()) -> None:
        """Checks in a step's last transaction that the state is still the one that the step began with. Rows may have
        been added and deleted since.

        A restore or a rebuild, also of another process, can put another state in place between two transactions. Rows
        that were copied from the old state would then be lost or come back.

        Args:
            training: number of the training that the step began with.
            sources: segments that were copied.

        Raises:
            Stopped: another state is in place. The step must change nothing.
        """
        names = set(manifest.segment_names())
        if manifest.state().training != training or any(source.segment.name not in names for source in sources):
            raise Stopped
        for source in sources:
            if len(np.setdiff1d(source.deleted, manifest.all_deleted_rows(source.segment.name), assume_unique=True)):
                raise Stopped

    def copied(self, sources: Sequence[Source], writer: SegmentWriter, spec: CodecSpec) -> Copy:
        """Finishes a copy. It is then on disk, but no committed state names it yet."""
        entry = writer.finish()
        return Copy(tuple(sources), entry, self.open_segments.open(entry, spec))
