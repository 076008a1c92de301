"""Maintenance: keeps an index in order, step by step, beside readers and writers. Each step reads in one short
transaction, writes files outside any, and names them in another."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edge.errors import StorageError, as_storage_error
from edge.ivf.base import MaintenanceReport, Quantizer, Tuned
from edge.ivf.maintenance.compaction import clean, flush, merge, split
from edge.ivf.maintenance.training import Curve, due, remeasure
from edge.ivf.maintenance.work import Stopped, Work
from edge.ivf.storage.manifest import IndexManifest
from edge.resident import trim_heap

_LOCK = "maintenance.lock"


def maintain(work: Work, tune: Callable[[Work], Tuned] | None = None) -> MaintenanceReport:
    """Runs the steps that are due, or all of them if `work.full`. Returns at once, with `busy`, while another one does.
    `tune` chooses parameters, with which the index is then trained."""
    started = time.perf_counter()
    with Guard(work.folder / _LOCK) as guard:
        work.report.busy = not guard.held
        if guard.held:
            try:
                _steps(work, tune)
            except Stopped:
                clean(work)
    work.report.seconds = time.perf_counter() - started
    return work.report


def installed(work: Work, quantizer: Quantizer) -> Curve:
    from edge.ivf.maintenance.retraining import install

    with Guard(work.folder / _LOCK) as guard:
        if not guard.held:
            raise StorageError(f"{work.folder} is being maintained by another process; try again later")
        curve = install(work, quantizer)
        clean(work)
    return curve


def discard(work: Work) -> bool:
    """Removes unused files; returns whether all are gone. No transaction may have begun before."""
    with Guard(work.folder / _LOCK) as guard:
        if guard.held:
            clean(work, at_once=True)
    with work.write() as db:
        return not IndexManifest(db).retired()


def _steps(work: Work, tune: Callable[[Work], Tuned] | None) -> None:
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
    """A lock file that one process at a time can hold. Never waits; `held`: the lock was free."""

    def __init__(self, path: Path) -> None:
        self.held = False
        self._path = path
        self._fd = -1

    def __enter__(self) -> Guard:
        with as_storage_error(f"{self._path} cannot be opened"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
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
