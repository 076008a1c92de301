"""Measures recall again after the collection has changed much."""

from __future__ import annotations

from collections.abc import Sequence

from edge.ivf.base import RESCORE, Codec, Vectors
from edge.ivf.maintenance.recall import Curve, measure
from edge.ivf.maintenance.rewriting import Source, live_rows
from edge.ivf.maintenance.work import Work
from edge.ivf.parameters import Tuned
from edge.ivf.storage.manifest import Manifest

_ROWS_CHANGE = 1.5
_LISTS_CHANGE = 1.05
"""Factors by which the number of vectors or lists grows or shrinks before recall is measured again."""


def measured(work: Work, sources: Sequence[Source], codec: Codec, centroids: Vectors, tuned: Tuned | None) -> Curve:
    """The recall curve of `sources`; empty if there is a single list.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: recall cannot be measured.
    """
    total = live_rows(sources)
    if len(centroids) == 1 or total == 0:
        return ()
    return measure(
        sources,
        codec,
        centroids,
        rescore=RESCORE if tuned is None else tuned.parameters.rescore,
        budget=work.budget,
        seed=work.options.seed + 1,
        check=lambda done: work.check("measure", done, total),
    )


def remeasure(work: Work) -> None:
    """Measures the recall curve if it is out of date, because many vectors came or went, or lists were split."""
    with work.write() as db:
        manifest = Manifest(db)
        state = manifest.state()
        if state.training == 0 or (
            _near(state.rows, state.measured_rows, _ROWS_CHANGE)
            and _near(manifest.list_count(), state.measured_lists, _LISTS_CHANGE)
        ):
            return
        training, tuned = work.snapshots.training(manifest), manifest.tuned()
        sources = list(work.sources(manifest).values())
    curve = measured(work, sources, training.codec, training.centroids, tuned)
    with work.write() as db:
        manifest = Manifest(db)
        work.check_state(manifest, state.training, sources)
        rows, lists = live_rows(sources), len(training.centroids)
        manifest.touch(recall=curve, measured_rows=rows, measured_lists=lists)


def _near(now: int, then: int, change: float) -> bool:
    return now <= then * change and then <= now * change
