"""Retraining: all vectors are sorted into new lists beside the old ones, and one transaction swaps the lists.

The vectors come from the segments that exist at the start. Rows that are flushed meanwhile lie in segments with the old
lists. They are sorted into the new lists afterwards, the last of them inside the transaction.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edge.ivf.assignment import assign, assign_nbytes, misfit
from edge.ivf.base import NO_IDS, Codec, Ids, Vectors
from edge.ivf.maintenance.recall import Curve, aim, measured
from edge.ivf.maintenance.training import due, sample, train
from edge.ivf.maintenance.work import Copy, Source, Work, live_rows, put_in_place, retire, workspace
from edge.ivf.parameters import Tuned
from edge.ivf.plan import member
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.partition import Runs
from edge.ivf.storage.segment_writer import WRITER_NBYTES, SegmentWriter
from edge.resident import trim_heap

_STREAM_NBYTES = 12 << 20
"""Bytes for reading a part (4 MiB), its records for the scratch files, and blocks on their way to the writer."""

_LEAST_ROOM = 4 << 20
_MOST_ROOM = 64 << 20
_CATCH_UPS = 3
_ESTIMATE_ROWS = 8192
"""Rows from which the sizes of the lists are estimated."""


def retrain(work: Work, chosen: Tuned | None = None) -> None:
    """Trains the index if training is due, or with the parameters that were `chosen`, which are then recorded.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: training failed, and nothing has changed.
    """
    with work.write() as db:
        manifest = Manifest(db)
        state = manifest.state()
        tuned = chosen or manifest.tuned()
        if chosen is None and not due(state, work.options, tuned):
            return
        sources = list(work.sources(manifest).values())
    total = live_rows(sources)
    spec, centroids, seen = train(
        sources,
        work.codecs,
        work.options,
        work.snapshots.dim,
        tuned,
        budget=work.budget,
        check=lambda done: work.check("train", done, total),
    )
    trim_heap()  # each phase allocates blocks of other sizes
    codec = work.codecs.open(spec)
    copies: list[Copy] = []
    fit = 0.0
    curve: Curve = ()
    if total:
        copy, fit = _sorted(work, sources, codec, centroids, seen)
        copies.append(copy)
        trim_heap()
        curve = measured(work, [Source(copy.segment, NO_IDS)], codec, centroids, tuned)
    covered = {source.segment.name for source in sources}
    for _ in range(_CATCH_UPS):
        with work.write() as db:
            late = [source for name, source in work.sources(Manifest(db)).items() if name not in covered]
        if not late:
            break
        covered.update(source.segment.name for source in late)
        if live_rows(late):
            copies.append(_sorted(work, late, codec, centroids, seen)[0])
    with work.write() as db:
        manifest = Manifest(db)
        work.check_state(manifest, state.training, [source for each in copies for source in each.sources])
        present = work.sources(manifest)
        late = [source for name, source in present.items() if name not in covered]
        if live_rows(late):
            copies.append(_sorted(work, late, codec, centroids, seen)[0])
        flat = len(centroids) == 1
        stamp = manifest.touch(
            training=0 if flat else 1 + secrets.randbits(62),
            trained_rows=total,
            trained_misfit=fit,
            newer_rows=0,
            newer_misfit=0.0,
            recall=curve,
            measured_rows=total,
            measured_lists=len(centroids),
        )
        manifest.set_training(spec, centroids[:0] if flat else centroids)
        if chosen is not None:
            manifest.set_tuned(replace(chosen, aim=aim(curve, chosen.nprobe)))
        for each in copies:
            put_in_place(manifest, each, stamp)
        kept = {source.segment.name for each in copies for source in each.sources}
        retire(manifest, [source for name, source in present.items() if name not in kept])
    work.trained = True
    work.trace.count("index.trainings")


def sorting_nbytes(nlist: int, dim: int) -> int:
    """The least memory in which an index with `nlist` lists is sorted after its training."""
    return 4 * dim * nlist + WRITER_NBYTES + _sorting_fixed(nlist) + _LEAST_ROOM


def _sorting_fixed(nlist: int) -> int:
    return _STREAM_NBYTES + assign_nbytes(nlist)


def _sorted(work: Work, sources: list[Source], codec: Codec, centroids: Vectors, seen: Ids) -> tuple[Copy, float]:
    """Writes all rows of `sources` into one new segment, sorted by list.

    Args:
        seen: ids the training has seen, ascending.

    Returns:
        The copy, and the mean misfit of the rows that are not in `seen`. Later rows will have about this misfit.
    """
    total = live_rows(sources)
    nlist = len(centroids)
    fixed = _sorting_fixed(nlist)
    most = fixed + min(_MOST_ROOM, max(_LEAST_ROOM, total * (4 * work.snapshots.dim + 12)))
    with (
        SegmentWriter(work.folder, codec.spec, work.budget) as writer,
        workspace(work.budget, "index sorting", fixed + _LEAST_ROOM, most) as lease,
        Runs(work.folder, work.snapshots.dim, _sizes(work, sources, centroids), lease.nbytes - fixed) as runs,
    ):
        done, others, fit = 0, 0, 0.0
        for source in sources:
            for block in source.stream():
                lists, scores = assign(block.vectors, centroids)
                new = ~member(seen, block.ids)
                others += int(new.sum())
                fit += misfit(block.vectors[new], scores[new])
                runs.add(lists, block.ids, block.vectors)
                done += len(block.ids)
                work.check("sort", done, total)
        for written in runs.drain(writer, codec):
            work.check("write", written, total)
        return work.copied(sources, writer, codec.spec), fit / max(1, others)


def _sizes(work: Work, sources: list[Source], centroids: Vectors) -> npt.NDArray[np.int64]:
    """Expected number of rows in each list, [nlist], estimated from a sample."""
    counts = np.zeros(len(centroids), np.int64)
    for _, vectors in sample(sources, _ESTIMATE_ROWS, work.options.seed + 2):
        counts += np.bincount(assign(vectors, centroids)[0], minlength=len(centroids))
    return counts * -(-live_rows(sources) // max(1, int(counts.sum())))
