"""Maintenance: keeps an index in order, step by step, beside readers and writers.

`Work` is the data that the steps of one run share. Each step reads its input in one short transaction, writes files
outside any transaction, and names the files in another. A kill in between leaves files that nothing names, and the next
maintenance removes them. A step copies rows of segments into a new segment while others write, and replaces the old
segments by it.

A copy holds the rows that were live at one moment. Rows that are deleted while the copy is made are deleted in the copy
by the transaction that names it. So no committed row is lost, and no deleted row comes back.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, StorageError
from edge.ivf.base import Codecs, CodecSpec, Connection, Ids, IndexOptions, MaintenanceReport, Tuned
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import IndexSegment, OpenSegments, RowBlock, SegmentEntry
from edge.ivf.storage.snapshots import Snapshots
from edge.resident import trim_heap
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
        """Number of rows to copy."""
        return self.segment.rows - len(self.deleted)

    def stream(self, parts: range | list[int] | None = None) -> Iterator[RowBlock]:
        """The rows to copy; see `IndexSegment.stream`."""
        return self.segment.stream(self.deleted, parts)


@dataclass(frozen=True, slots=True)
class Copy:
    """A new segment on disk, and the sources whose rows it contains."""

    sources: tuple[VectorSource, ...]
    entry: SegmentEntry
    segment: IndexSegment


class Stopped(Exception):
    """The caller has asked to stop, or another state is in place. Committed steps stay, and unfinished files are
    removed."""


@dataclass(slots=True)
class Work:
    """One run of maintenance.

    Attributes:
        write: opens a short write transaction.
        full: every step is done, down to one segment without deleted rows.
        stop: if set, the run ends as soon as possible.
        progress: called with a stage's name, rows done and rows in all.
        report: the figures, which the steps add to.
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
    report: MaintenanceReport = field(default_factory=MaintenanceReport, init=False)

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

    def sources(self, manifest: IndexManifest) -> dict[str, VectorSource]:
        """All segments by name, oldest first, each with its rows that are deleted now."""
        return {
            name: VectorSource(segment, manifest.all_deleted_rows(name))
            for name, segment in self.snapshots.segments(manifest).items()
        }

    def check_state(self, manifest: IndexManifest, training: int, sources: Collection[VectorSource] = ()) -> None:
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
    """Deletes in a copy the rows that were deleted in its source since the copying began.

    Args:
        moved: the rows (ascending) that were copied, if not all were.
    """
    late = np.setdiff1d(manifest.all_deleted_rows(source.segment.name), source.deleted, assume_unique=True)
    if moved is not None:
        late = np.intersect1d(late, moved, assume_unique=True)
    if len(late):
        rows = copy.lookup(np.sort(source.segment.ids(late)))
        manifest.delete_rows(copy.name, np.sort(rows), stamp)


def workspace(budget: MemoryBudget, owner: str, least: int, most: int) -> Lease:
    """Reserves memory for a step of maintenance, between `least` and `most` bytes.

    The aim is three quarters of the free memory, or an eighth of the limit if caches hold almost everything. If other
    owners give up too little, the lease is smaller.

    Raises:
        BudgetExceeded: not even `least` bytes are available.
    """
    wanted = max(least, min(most, max(3 * budget.free // 4, budget.limit // 8)))
    while wanted > least:
        with suppress(BudgetExceeded):
            return budget.reserve(owner, wanted)
        wanted = max(least, wanted // 2)
    return budget.reserve(owner, least)


def live_rows(sources: Iterable[VectorSource]) -> int:
    """Number of rows to copy in all sources."""
    return sum(source.live for source in sources)


_LOCK = "maintenance.lock"


def maintain(work: Work, tune: Callable[[Work], Tuned] | None = None) -> MaintenanceReport:
    """Runs the steps that are due, or all of them, down to one segment without deleted rows, if `work.full`.

    One thread of one process maintains an index at a time. Returns at once, with `busy`, while another one does.

    Args:
        tune: chooses parameters when all rows are in segments. The index is then trained with them.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: a step cannot be done; earlier steps stay.
    """
    started = time.perf_counter()
    with Guard(work.folder / _LOCK) as guard:
        work.report.busy = not guard.held
        if guard.held:
            try:
                _steps(work, tune)
            except Stopped:
                from edge.ivf.maintenance.compaction import clean

                clean(work)
    work.report.seconds = time.perf_counter() - started
    return work.report


def discard(work: Work) -> int:
    """Removes the files that are out of use without waiting for readers in other processes; returns their number.

    The caller must know that no transaction of another process began before the files were retired.

    Raises:
        StorageError: the folder cannot be read.
    """
    from edge.ivf.maintenance.compaction import clean

    with Guard(work.folder / _LOCK) as guard:
        if guard.held:
            clean(work, at_once=True)
    return work.report.removed_files


def _steps(work: Work, tune: Callable[[Work], Tuned] | None) -> None:
    from edge.ivf.maintenance.compaction import clean, flush, merge, split
    from edge.ivf.maintenance.training import due, remeasure

    def training_is_due() -> bool:
        with work.write() as db:
            manifest = IndexManifest(db)
            return due(manifest.state(), work.options, manifest.tuned())

    def train() -> None:
        if tune is not None or training_is_due():
            from edge.ivf.maintenance.retraining import retrain

            retrain(work, tune(work) if tune else None)

    clean(work)
    everything = work.full or tune is not None or training_is_due()
    steps: list[tuple[str, Callable[[], None]]] = [
        ("flush", lambda: flush(work, least=1 if everything else work.options.pending_limit)),
        ("train", train),
        ("split", lambda: split(work)),
        ("merge", lambda: merge(work)),
        ("measure", lambda: remeasure(work)),
    ]
    for name, step in steps:
        with work.trace.span(name, "index"):
            step()
        trim_heap()
    clean(work)


class Guard:
    """A lock file that one process at a time can hold. The system unlocks it when that process dies.

    A context manager; `held` says whether the lock was free. It never waits.
    """

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

    def __exit__(self, *error: object) -> None:
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
