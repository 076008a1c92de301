"""Moving pending rows from SQLite to a segment."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from edge.ivf.assignment import append_by_list, assign, assign_nbytes, misfit
from edge.ivf.maintenance.work import Work
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.segment_writer import SegmentWriter


def flush(work: Work, least: int = 1) -> None:
    """Moves all pending rows to a new segment, if there are at least `least`.

    Raises:
        BudgetExceeded, StorageError: the segment cannot be written; the rows stay pending.
    """
    with ExitStack() as stack:
        with work.write() as db:
            manifest = Manifest(db)
            if manifest.pending_count() < max(1, least):
                return
            training, number_of_training = work.snapshots.training(manifest), manifest.state().training
            dim, nlist = work.snapshots.dim, len(training.centroids)
            ids, stamps = manifest.pending_stamps()
            nbytes = len(ids) * (4 * dim + 16) + assign_nbytes(nlist)
            stack.enter_context(work.budget.reserve("index flush", nbytes))
            vectors = manifest.pending_vectors(ids, dim)
        work.check("flush", 0, len(ids))
        writer = stack.enter_context(SegmentWriter(work.folder, training.codec.spec, work.budget))
        lists, scores = assign(vectors, training.centroids)
        append_by_list(writer, training.codec, lists, ids, vectors)
        entry = writer.finish()
        segment = work.open_segments.open(entry, training.codec.spec)
        with work.write() as db:
            manifest = Manifest(db)
            work.check_state(manifest, number_of_training)
            stamp = manifest.touch()
            manifest.add_segment(entry)
            held = set(zip(*(part.tolist() for part in manifest.pending_stamps()), strict=True))
            same = np.array([key in held for key in zip(ids.tolist(), stamps.tolist(), strict=True)], np.bool_)
            # Rows that were deleted or replaced meanwhile are in the segment; they are marked as deleted there.
            manifest.delete_rows(segment.name, np.sort(segment.lookup(np.sort(ids[~same]))), stamp)
            manifest.delete_pending(ids[same])
            if nlist > 1:
                manifest.count_misfit(len(ids), misfit(vectors, scores))
    work.flushed += int(same.sum())
    work.trace.count("index.flushed", int(same.sum()))
