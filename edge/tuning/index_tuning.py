"""Tuning of an index that is in use: whether it is due, the choice, and the training with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge.errors import StorageError
from edge.ivf.base import Vectors
from edge.ivf.maintenance.maintainer import Maintainer
from edge.ivf.maintenance.rewriting import Source
from edge.ivf.maintenance.work import Progress, Stopped, Work, Write
from edge.ivf.parameters import Goal, Tuned, Tuning
from edge.ivf.storage.manifest import Manifest
from edge.tuning.tuner import Candidates, tune

_SAME_ROWS = 0.1
"""Largest relative change in the number of vectors at which an index still counts as tuned."""


def tuned(
    maintainer: Maintainer,
    write: Write,
    goal: Goal,
    questions: Vectors | None,
    *,
    stop: threading.Event | None,
    progress: Progress | None,
) -> Tuning:
    """Tunes an index, unless it was tuned for the same goal with about as many vectors. See `VectorIndex.tune`."""
    with write() as db:
        manifest = Manifest(db)
        rows, known = manifest.state().rows, manifest.tuned()
    if known is not None and known.goal == goal and abs(rows - known.rows) <= _SAME_ROWS * known.rows:
        return Tuning(known, changed=False)

    def choose(work: Work) -> Tuned:
        return tune(work, goal, questions)

    report = maintainer.run(write, full=False, stop=stop, progress=progress, tune=choose)
    if report.busy:
        raise StorageError("another thread or process maintains the index: tune it when that has ended")
    with write() as db:
        record = Manifest(db).tuned()
    if record is None or not report.trained:
        raise StorageError("tuning was stopped, or another state of the index was put in place: nothing has changed")
    return Tuning(record, changed=True)


def examine(
    maintainer: Maintainer,
    write: Write,
    use: Callable[[Candidates], object],
    questions: Vectors | None,
    *,
    progress: Progress | None,
) -> None:
    """Calls `use` with the candidate parameters of an index. See `VectorIndex.examine`."""
    used = []

    def look(work: Work) -> Tuned:
        with work.write() as db:
            sources: list[Source] = list(work.sources(Manifest(db)).values())
        use(Candidates(work, sources, questions))
        used.append(True)
        raise Stopped  # before anything is trained

    report = maintainer.run(write, full=False, stop=None, progress=progress, tune=look)
    if report.busy or not used:
        raise StorageError("another thread or process maintains the index: try again when that has ended")
