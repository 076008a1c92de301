"""`Work`: what the steps of one maintenance share, and the figures they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.base import Codecs, CodecSpec, IndexOptions
from edge.ivf.manifest import Manifest
from edge.ivf.rewriting import Copy, Source
from edge.ivf.segment_writer import SegmentWriter
from edge.ivf.segments import OpenSegments
from edge.ivf.snapshots import Snapshots
from edge.trace import Trace

Write = Callable[[], AbstractContextManager[Connection]]
Progress = Callable[[str, int, int], None]


class Stopped(Exception):
    """The caller wants no more; what has been committed stays, what was being made is removed."""


@dataclass(slots=True)
class Work:
    """One maintenance under way.

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
        """Reports how far a stage is.

        Raises:
            Stopped: the caller wants no more.
        """
        if self.stop is not None and self.stop.is_set():
            raise Stopped
        if self.progress is not None:
            self.progress(stage, done, total)

    def sources(self, manifest: Manifest) -> dict[str, Source]:
        """All segments by name, oldest first, with what is deleted in them now."""
        return {
            name: Source(segment, manifest.all_deleted_rows(name))
            for name, segment in self.snapshots.segments(manifest).items()
        }

    def copied(self, sources: Sequence[Source], writer: SegmentWriter, spec: CodecSpec) -> Copy:
        """Ends a copy; it is on disk afterwards, and not yet named by anything."""
        entry = writer.finish()
        return Copy(tuple(sources), entry, self.open_segments.open(entry, spec))
