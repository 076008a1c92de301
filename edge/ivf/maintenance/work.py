"""`Work`: the data that the steps of one maintenance share. A step copies rows into a new segment while others write;
the transaction that names it deletes in it the rows that were deleted meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded
from edge.ivf.base import Codecs, CodecSpec, Connection, Ids, IndexOptions, MaintenanceReport
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import IndexSegment, OpenSegments, RowBlock, SegmentEntry
from edge.ivf.storage.snapshots import Snapshots
from edge.trace import Trace

Write = Callable[[], AbstractContextManager[Connection]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class VectorSource:
    """A segment to be copied, and its rows that were deleted when the copying began (ascending)."""

    segment: IndexSegment
    deleted: Ids

    @property
    def live(self) -> int:
        return self.segment.rows - len(self.deleted)

    def stream(self, parts: range | list[int] | None = None) -> Iterator[RowBlock]:
        return self.segment.stream(self.deleted, parts)


@dataclass(frozen=True, slots=True)
class Copy:
    """A new segment on disk, and the sources whose rows it contains."""

    sources: tuple[VectorSource, ...]
    entry: SegmentEntry
    segment: IndexSegment


class Stopped(Exception):
    """The caller asked to stop, or another state is in place. Committed steps stay; unfinished files are removed."""


@dataclass(slots=True)
class Work:
    """One run of maintenance. `write` opens a short transaction; `progress` gets a stage's name, rows done and rows in
    all; steps add to `report`."""

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
    report: MaintenanceReport = field(default_factory=MaintenanceReport, init=False)

    @property
    def folder(self) -> Path:
        return self.open_segments.folder

    def check(self, stage: str, done: int = 0, total: int = 0) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped
        if self.progress is not None:
            self.progress(stage, done, total)

    def sources(self, manifest: IndexManifest) -> dict[str, VectorSource]:
        """All segments by name, oldest first, each with its rows that are deleted now."""
        return {
            name: VectorSource(segment, manifest.all_deleted_rows(name))
            for name, segment in self.snapshots.segments(manifest).items()
        }

    def check_state(self, manifest: IndexManifest, training: int, sources: Collection[VectorSource] = ()) -> None:
        """Raises `Stopped` in a step's last transaction if a restore or a rebuild, also of another process, has
        replaced the state."""
        names = set(manifest.segment_names())
        if manifest.state().training != training or any(source.segment.name not in names for source in sources):
            raise Stopped
        for source in sources:
            if len(np.setdiff1d(source.deleted, manifest.all_deleted_rows(source.segment.name), assume_unique=True)):
                raise Stopped

    def copied(self, sources: Sequence[VectorSource], writer: SegmentWriter, spec: CodecSpec) -> Copy:
        """Finishes a copy. It is then on disk, but no committed state names it yet."""
        entry = writer.finish()
        return Copy(tuple(sources), entry, self.open_segments.open(entry, spec))


def put_in_place(manifest: IndexManifest, copy: Copy, stamp: int) -> None:
    """Adds a copy to the state and retires its sources, inside a write transaction."""
    manifest.add_segment(copy.entry)
    for source in copy.sources:
        carry_deletions(manifest, source, copy.segment, stamp)
    retire(manifest, copy.sources)


def retire(manifest: IndexManifest, sources: Iterable[VectorSource]) -> None:
    """Takes segments out of the state, inside a write transaction."""
    manifest.retire_segments([source.segment.name for source in sources], time.time())


def carry_deletions(
    manifest: IndexManifest, source: VectorSource, copy: IndexSegment, stamp: int, moved: Ids | None = None
) -> None:
    """Deletes in a copy the rows (of those `moved`, ascending) that were deleted in its source since."""
    late = np.setdiff1d(manifest.all_deleted_rows(source.segment.name), source.deleted, assume_unique=True)
    if moved is not None:
        late = np.intersect1d(late, moved, assume_unique=True)
    if len(late):
        rows = copy.lookup(np.sort(source.segment.ids(late)))
        manifest.delete_rows(copy.name, np.sort(rows), stamp)


def workspace(budget: MemoryBudget, owner: str, least: int, most: int) -> Lease:
    """Reserves between `least` and `most` bytes for a step: three quarters of the free memory, or an eighth of the
    limit."""
    wanted = max(least, min(most, max(3 * budget.free // 4, budget.limit // 8)))
    while wanted > least:
        with suppress(BudgetExceeded):
            return budget.reserve(owner, wanted)
        wanted = max(least, wanted // 2)
    return budget.reserve(owner, least)


def live_rows(sources: Iterable[VectorSource]) -> int:
    return sum(source.live for source in sources)
