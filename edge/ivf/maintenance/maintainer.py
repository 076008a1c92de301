"""`Maintainer`: keeps an index in order, step by step, beside readers and writers.

Each step reads its input in one short transaction, writes files outside any transaction, and names the files in
another. A kill in between leaves files that nothing names, and the next maintenance removes them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge.budget import MemoryBudget
from edge.errors import StorageError
from edge.ivf.base import Codecs, IndexOptions, MaintenanceReport, Tuned
from edge.ivf.maintenance.compaction import clean, flush, merge, split
from edge.ivf.maintenance.retraining import retrain
from edge.ivf.maintenance.training import due, remeasure
from edge.ivf.maintenance.work import Progress, Stopped, Work, Write
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segments import OpenSegments
from edge.ivf.storage.snapshots import Snapshots
from edge.resident import trim_heap
from edge.trace import Trace

_LOCK = "maintenance.lock"


class Maintainer:
    """Maintains one index. One thread of one process runs it at a time."""

    def __init__(
        self,
        snapshots: Snapshots,
        segments: OpenSegments,
        codecs: Codecs,
        options: IndexOptions,
        budget: MemoryBudget,
        trace: Trace,
    ) -> None:
        self._snapshots = snapshots
        self._segments = segments
        self._codecs = codecs
        self._options = options
        self._budget = budget
        self._trace = trace

    def run(
        self,
        write: Write,
        *,
        full: bool,
        stop: threading.Event | None,
        progress: Progress | None,
        tune: Callable[[Work], Tuned] | None = None,
    ) -> MaintenanceReport:
        """Runs the steps that are due, or all of them, down to one segment without deleted rows, if `full`.

        Returns at once, with `busy`, while another thread or process maintains this index.

        Args:
            tune: chooses parameters when all rows are in segments. The index is then trained with them.

        Raises:
            BudgetExceeded, CorruptBlock, StorageError: a step cannot be done; earlier steps stay.
        """
        started = time.perf_counter()
        work = Work(
            self._snapshots,
            self._segments,
            self._codecs,
            self._options,
            self._budget,
            self._trace,
            write,
            full=full,
            stop=stop,
            progress=progress,
        )
        with Guard(self._segments.folder / _LOCK) as guard:
            busy = not guard.held
            if not busy:
                try:
                    self._steps(work, tune)
                except Stopped:
                    clean(work, grace_seconds=self._options.grace_seconds)
        return MaintenanceReport(
            flushed=work.flushed,
            merged=work.merged,
            reclaimed=work.reclaimed,
            split=work.split,
            trained=work.trained,
            removed_files=work.removed_files,
            busy=busy,
            seconds=time.perf_counter() - started,
        )

    def discard(self, write: Write) -> int:
        """Removes the files that are out of use without waiting for readers in other processes; returns their number.

        The caller must know that no transaction of another process began before the files were retired.

        Raises:
            StorageError: the folder cannot be read.
        """
        work = Work(
            self._snapshots, self._segments, self._codecs, self._options, self._budget, self._trace, write,
            full=False, stop=None, progress=None,
        )  # fmt: skip
        with Guard(self._segments.folder / _LOCK) as guard:
            if guard.held:
                clean(work, grace_seconds=0)
        return work.removed_files

    def _steps(self, work: Work, tune: Callable[[Work], Tuned] | None) -> None:
        clean(work, grace_seconds=self._options.grace_seconds)
        with work.write() as db:
            manifest = IndexManifest(db)
            everything = work.full or tune is not None or due(manifest.state(), work.options, manifest.tuned())
        steps: list[tuple[str, Callable[[], None]]] = [
            ("flush", lambda: flush(work, least=1 if everything else work.options.pending_limit)),
            ("train", lambda: retrain(work, tune(work) if tune else None)),
            ("split", lambda: split(work)),
            ("merge", lambda: merge(work)),
            ("measure", lambda: remeasure(work)),
        ]
        for name, step in steps:
            with self._trace.span(name, "index"):
                step()
            trim_heap()
        clean(work, grace_seconds=self._options.grace_seconds)


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
