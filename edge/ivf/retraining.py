"""Training anew: all vectors are sorted into new lists beside the old ones, and one transaction puts them in place.

The vectors come from the segments as they are at the start; what is flushed meanwhile lies in segments with the old
lists and is sorted afterwards, the last of it inside the transaction.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from edge.ivf.assignment import assign, assign_nbytes, misfit
from edge.ivf.base import NO_IDS, Codec, Ids, Vectors
from edge.ivf.manifest import Manifest
from edge.ivf.partition import Runs
from edge.ivf.plan import member
from edge.ivf.recall import Curve
from edge.ivf.remeasuring import measured
from edge.ivf.rewriting import Copy, Source, live_rows, put_in_place, retire, workspace
from edge.ivf.sampling import sample
from edge.ivf.segment_writer import SegmentWriter
from edge.ivf.training import due, train
from edge.ivf.work import Work
from edge.resident import trim_heap

_STREAM_NBYTES = 12 << 20
"""Reading a part (4 MiB), its records for the scratch files, and blocks on their way to the writer."""

_LEAST_ROOM = 4 << 20
_MOST_ROOM = 64 << 20
_CATCH_UPS = 3
_ESTIMATE_ROWS = 8192
"""Rows from which the sizes of the lists are estimated."""


def retrain(work: Work) -> None:
    """Trains if that is due.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: it cannot be done; nothing has changed.
    """
    with work.write() as db:
        manifest = Manifest(db)
        if not due(manifest.state(), work.options):
            return
        sources = list(work.sources(manifest).values())
    total = live_rows(sources)
    spec, centroids, seen = train(
        sources,
        work.codecs,
        work.options,
        work.snapshots.dim,
        budget=work.budget,
        check=lambda done: work.check("train", done, total),
    )
    trim_heap()  # each phase needs other sizes
    codec = work.codecs.open(spec)
    copies: list[Copy] = []
    fit = 0.0
    curve: Curve = ()
    if total:
        copy, fit = _sorted(work, sources, codec, centroids, seen)
        copies.append(copy)
        trim_heap()
        curve = measured(work, [Source(copy.segment, NO_IDS)], codec, centroids)
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
        for each in copies:
            put_in_place(manifest, each, stamp)
        kept = {source.segment.name for each in copies for source in each.sources}
        retire(manifest, [source for name, source in present.items() if name not in kept])
    work.trained = True
    work.trace.count("index.trainings")


def _sorted(work: Work, sources: list[Source], codec: Codec, centroids: Vectors, seen: Ids) -> tuple[Copy, float]:
    """All rows of `sources` in one new segment, by list; and the mean misfit of those the training has not `seen`
    (ids, ascending), which is what rows that come later will have."""
    total = live_rows(sources)
    nlist = len(centroids)
    fixed = _STREAM_NBYTES + assign_nbytes(nlist)
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
    """Rows expected in each list, [nlist]."""
    counts = np.zeros(len(centroids), np.int64)
    for _, vectors in sample(sources, _ESTIMATE_ROWS, work.options.seed + 2):
        counts += np.bincount(assign(vectors, centroids)[0], minlength=len(centroids))
    return counts * -(-live_rows(sources) // max(1, int(counts.sum())))
