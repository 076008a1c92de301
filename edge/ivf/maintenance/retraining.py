"""Retraining: all vectors are sorted into new lists beside the old ones, and one transaction swaps the lists. Rows
flushed meanwhile are sorted afterwards, the last of them inside the transaction."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.errors import StorageError, as_storage_error
from edge.files.named_file import write_all
from edge.ivf.base import NO_IDS, Codec, CodecSpec, Ids, Quantizer, Tuned, Vectors
from edge.ivf.maintenance.compaction import flush
from edge.ivf.maintenance.training import Curve, aim, measured, sample, train
from edge.ivf.maintenance.work import Copy, VectorSource, Work, live_rows, put_in_place, retire, workspace
from edge.ivf.plan import member
from edge.ivf.storage.manifest import IndexManifest, State
from edge.ivf.storage.segment_writer import (
    WRITER_NBYTES,
    Lists,
    SegmentWriter,
    append_by_list,
    assign,
    assign_nbytes,
    misfit,
)
from edge.resident import Closing, trim_heap


class Runs(Closing):
    """Rows in runs that are sorted by list, in a scratch file. A context manager that removes it on exit."""

    def __init__(self, folder: Path, dim: int, nlist: int, room: int) -> None:
        """`room`: bytes of rows in memory."""
        self._record = np.dtype([("list", "<i4"), ("id", "<i8"), ("vector", "<f4", (dim,))])
        # As many again are sorted, or read.
        self._held = np.empty(max(1, room // (2 * self._record.itemsize)), self._record)
        self._count = 0
        self._nlist = nlist
        self._starts: list[npt.NDArray[np.int32]] = []  # of each list in each run, and the run's end [nlist + 1]
        self._path = folder / f"{secrets.token_hex(8)}.run.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w+b", buffering=0)
        except OSError as error:
            raise StorageError(f"{folder} takes no scratch file: {error.strerror}") from error

    def add(self, lists: Lists, ids: Ids, vectors: Vectors) -> None:
        start = 0
        while start < len(ids):
            end = min(len(ids), start + len(self._held) - self._count)
            rows = self._held[self._count : self._count + end - start]
            rows["list"], rows["id"], rows["vector"] = lists[start:end], ids[start:end], vectors[start:end]
            self._count += end - start
            start = end
            if self._count == len(self._held):
                self._end_run()

    def drain(self, writer: SegmentWriter, codec: Codec) -> Iterator[int]:
        """Writes all rows in the order of their lists, and yields the number written so far."""
        self._end_run()
        most, self._held = len(self._held), self._held[:0]
        ends = np.cumsum(sum(np.diff(starts) for starts in self._starts))
        low = done = 0
        while low < self._nlist:
            high = max(low + 1, int(np.searchsorted(ends, done + most, side="right")))
            pieces = (self._read(int(starts[low]), int(starts[high])) for starts in self._starts)
            # A single list may be larger than the memory: its rows may come in any order.
            for rows in pieces if high == low + 1 else [np.concatenate(list(pieces))]:
                append_by_list(writer, codec, rows["list"], rows["id"], rows["vector"])
            low, done = high, int(ends[high - 1])
            yield done

    def close(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):  # the next maintenance removes it
            self._path.unlink(missing_ok=True)

    def _end_run(self) -> None:
        rows = self._held[: self._count]
        rows = rows[np.argsort(rows["list"], kind="stable")]
        first = self._starts[-1][-1] if self._starts else 0
        starts = first + np.searchsorted(rows["list"], np.arange(self._nlist + 1))
        self._starts.append(starts.astype(np.int32))
        try:
            write_all(self._file, rows.view(np.uint8).data)
        except OSError as error:
            raise StorageError(
                f"sorting in a scratch file of the index failed: {error.strerror}; nothing has changed"
            ) from error
        self._count = 0

    def _read(self, start: int, end: int) -> npt.NDArray[np.void]:
        rows = np.empty(end - start, self._record)
        left = rows.view(np.uint8).data
        with as_storage_error("a scratch file cannot be read"):
            self._file.seek(start * self._record.itemsize)
            while left and (count := self._file.readinto(left)):
                left = left[count:]
        if left:
            raise StorageError("a scratch file of the index was cut off while it was sorted; nothing has changed")
        return rows


_STREAM_NBYTES = 12 << 20
"""Bytes for reading a part (4 MiB), its records for the scratch files, and blocks on their way to the writer."""

_LEAST_ROOM = 4 << 20
_MOST_ROOM = 64 << 20
_CATCH_UPS = 3


def retrain(work: Work, chosen: Tuned | None = None) -> None:
    """Trains the index, with the parameters that were `chosen` if any were. These are then recorded."""
    with work.write() as db:
        manifest = IndexManifest(db)
        state = manifest.state()
        tuned = chosen or manifest.tuned()
        sources = list(work.sources(manifest).values())
    total = live_rows(sources)
    spec, centroids, seen = train(
        total,
        lambda count: sample(sources, count, work.options.seed),
        work.codecs,
        work.options,
        work.snapshots.dim,
        tuned,
        budget=work.budget,
        check=lambda done: work.check("train", done, total),
    )
    trim_heap()  # each phase allocates blocks of other sizes
    _sort_into(work, state, sources, spec, centroids, seen, tuned, chosen)
    work.report.trained = True
    work.trace.count("index.trainings")


def install(work: Work, quantizer: Quantizer) -> Curve:
    """Sorts the index into the lists of a shared quantizer, and returns its recall curve. The index then trains no
    more, splits no list, and forgets its tuning. A version that it has already only gets its curve replaced."""
    with work.write() as db:
        manifest = IndexManifest(db)
        state = manifest.state()
        if state.quantizer == quantizer.version:
            if quantizer.recall:
                manifest.touch(recall=quantizer.recall)
            return quantizer.recall or state.recall
    flush(work)
    with work.write() as db:
        manifest = IndexManifest(db)
        state = manifest.state()
        sources = list(work.sources(manifest).values())
    return _sort_into(
        work, state, sources, quantizer.spec, quantizer.centroids, NO_IDS, None, None, version=quantizer.version,
        recall=quantizer.recall,
    )  # fmt: skip


def _sort_into(
    work: Work, state: State, sources: list[VectorSource], spec: CodecSpec, centroids: Vectors, seen: Ids,
    tuned: Tuned | None, chosen: Tuned | None, *, version: int = 0, recall: Curve = (),
) -> Curve:  # fmt: skip
    """Sorts all rows into new lists, puts these in place of the old ones, and returns the recall curve.

    `state` was read with the `sources`; `seen` are the ids of the training, ascending; `chosen` is `tuned` if it is to
    be recorded. `recall` is measured here if empty."""
    total = live_rows(sources)
    codec = work.codecs.open(spec)
    copies: list[Copy] = []
    fit = 0.0
    curve = recall
    if total:
        copy, fit = _sorted(work, sources, codec, centroids, seen)
        copies.append(copy)
        trim_heap()
        curve = curve or measured(work, [VectorSource(copy.segment, NO_IDS)], codec, centroids, tuned)
    covered = {source.segment.name for source in sources}
    for _ in range(_CATCH_UPS):
        with work.write() as db:
            late = [source for name, source in work.sources(IndexManifest(db)).items() if name not in covered]
        if not late:
            break
        covered.update(source.segment.name for source in late)
        if live_rows(late):
            copies.append(_sorted(work, late, codec, centroids, seen)[0])
    with work.write() as db:
        manifest = IndexManifest(db)
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
            quantizer=version,
        )
        if version:
            manifest.forget_tuned()
        manifest.set_training(spec, centroids[:0] if flat else centroids)
        if chosen is not None:
            manifest.set_tuned(replace(chosen, aim=aim(curve, chosen.nprobe)))
        for each in copies:
            put_in_place(manifest, each, stamp)
        kept = {source.segment.name for each in copies for source in each.sources}
        retire(manifest, [source for name, source in present.items() if name not in kept])
    return curve


def sorting_nbytes(rows: int, nlist: int, dim: int) -> int:
    """The least memory in which an index with `nlist` lists is sorted after its training."""
    return 4 * dim * nlist + WRITER_NBYTES + _sorting_fixed(nlist) + _least_room(rows, nlist, dim)


def _sorting_fixed(nlist: int) -> int:
    return _STREAM_NBYTES + assign_nbytes(nlist)


def _least_room(rows: int, nlist: int, dim: int) -> int:
    """Half of it holds rows. The tables of the runs then fit into the other half."""
    return max(_LEAST_ROOM, int(2 * (8 * nlist * rows * (4 * dim + 12)) ** 0.5))


def _sorted(work: Work, sources: list[VectorSource], codec: Codec, centroids: Vectors, seen: Ids) -> tuple[Copy, float]:
    """Writes all rows of `sources` into one new segment, sorted by list. Returns it with the mean misfit of the rows
    that are not in `seen` (ids, ascending)."""
    total = live_rows(sources)
    nlist = len(centroids)
    fixed, least = _sorting_fixed(nlist), _least_room(total, nlist, work.snapshots.dim)
    most = max(least, min(_MOST_ROOM, 2 * total * (4 * work.snapshots.dim + 12)))
    with (
        SegmentWriter(work.folder, codec.spec, work.budget) as writer,
        workspace(work.budget, "index sorting", fixed + least, fixed + most) as lease,
        Runs(work.folder, work.snapshots.dim, nlist, (lease.nbytes - fixed) // 2) as runs,
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
