"""Retraining: all vectors are sorted into new lists beside the old ones, and one transaction swaps the lists. Rows
flushed meanwhile are sorted afterwards, the last of them inside the transaction."""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.blocks import stretches
from edge.errors import StorageError, as_storage_error
from edge.files.output_file import write_all
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

_MOST_FILES = 96
"""Files open at once. Some systems allow a process no more than 256."""

_READ_NBYTES = 1 << 20


class Runs(Closing):
    """Scratch files, one for each range of lists. A context manager that removes them on exit."""

    def __init__(self, folder: Path, dim: int, sizes: npt.NDArray[np.int64], room: int) -> None:
        """Empty runs for so many rows in each list [nlist]; `room` are bytes of rows in memory."""
        self._record = np.dtype([("list", "<i4"), ("id", "<i8"), ("vector", "<f4", (dim,))])
        self._room = max(1, room // self._record.itemsize)
        # A file fills half the memory on average, since the sizes are estimates.
        count = min(_MOST_FILES, len(sizes), 1 + 2 * int(sizes.sum()) // self._room)
        before = np.cumsum(sizes) - sizes
        self._group = np.minimum(count - 1, before * count // max(1, int(sizes.sum()))).astype(np.int32)
        token = secrets.token_hex(8)
        self._paths = [folder / f"{token}-{number}.run.tmp" for number in range(count)]
        self._files: list[io.FileIO] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in self._paths:
                self._files.append(path.open("w+b", buffering=0))
        except OSError as error:
            self.close()
            raise StorageError(f"{folder} takes no scratch files: {error.strerror}") from error

    def add(self, lists: Lists, ids: Ids, vectors: Vectors) -> None:
        groups = self._group[lists]
        order = np.argsort(groups, kind="stable")
        records = np.empty(len(ids), self._record)
        records["list"], records["id"], records["vector"] = lists[order], ids[order], vectors[order]
        groups = groups[order]
        for low, high in stretches(groups):
            self._write(int(groups[low]), records[low:high])

    def drain(self, writer: SegmentWriter, codec: Codec) -> Iterator[int]:
        """Writes all rows in the order of their lists, and yields the number written so far."""
        done = 0
        for number, file in enumerate(self._files):
            keys = np.concatenate([np.empty(0, np.int32), *(block["list"].copy() for block in self._blocks(file))])
            for low, high, rows in self._ranges(keys):
                if rows > self._room:  # a single list: its rows may come in any order
                    for block in self._blocks(file):
                        own = block[block["list"] == low]
                        append_by_list(writer, codec, own["list"], own["id"], own["vector"])
                else:
                    held = np.empty(rows, self._record)
                    at = 0
                    for block in self._blocks(file):
                        own = block[(block["list"] >= low) & (block["list"] < high)]
                        held[at : at + len(own)] = own
                        at += len(own)
                    append_by_list(writer, codec, held["list"], held["id"], held["vector"])
                done += rows
                yield done
            file.close()
            self._remove(self._paths[number])

    def close(self) -> None:
        for file in self._files:
            file.close()
        for path in self._paths:
            self._remove(path)

    def _ranges(self, keys: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        """Ranges of lists whose rows fit the memory, as (first, past the last, rows); a single list may exceed it."""
        lists, counts = np.unique(keys, return_counts=True)
        start = 0
        while start < len(lists):
            end, rows = start + 1, int(counts[start])
            while end < len(lists) and rows + int(counts[end]) <= self._room:
                rows += int(counts[end])
                end += 1
            yield int(lists[start]), int(lists[end - 1]) + 1, rows
            start = end

    def _blocks(self, file: io.FileIO) -> Iterator[npt.NDArray[np.void]]:
        size = self._record.itemsize
        step = max(1, _READ_NBYTES // size) * size
        with as_storage_error("a scratch file cannot be read"):
            file.seek(0)
            while True:
                data = bytearray()
                while len(data) < step and (more := file.read(step - len(data))):
                    data += more
                if not data:
                    return
                yield np.frombuffer(data, self._record)

    def _write(self, number: int, records: npt.NDArray[np.void]) -> None:
        view = np.ascontiguousarray(records).view(np.uint8).data
        try:
            write_all(self._files[number], view)
        except OSError as error:
            raise StorageError(
                f"sorting {len(self._paths)} scratch files of the index failed: {error.strerror}; nothing has changed"
            ) from error

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the next maintenance removes it
            path.unlink(missing_ok=True)


_STREAM_NBYTES = 12 << 20
"""Bytes for reading a part (4 MiB), its records for the scratch files, and blocks on their way to the writer."""

_LEAST_ROOM = 4 << 20
_MOST_ROOM = 64 << 20
_CATCH_UPS = 3
_ESTIMATE_ROWS = 8192
"""Rows from which the sizes of the lists are estimated."""


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


def sorting_nbytes(nlist: int, dim: int) -> int:
    """The least memory in which an index with `nlist` lists is sorted after its training."""
    return 4 * dim * nlist + WRITER_NBYTES + _sorting_fixed(nlist) + _LEAST_ROOM


def _sorting_fixed(nlist: int) -> int:
    return _STREAM_NBYTES + assign_nbytes(nlist)


def _sorted(work: Work, sources: list[VectorSource], codec: Codec, centroids: Vectors, seen: Ids) -> tuple[Copy, float]:
    """Writes all rows of `sources` into one new segment, sorted by list. Returns it with the mean misfit of the rows
    that are not in `seen` (ids, ascending)."""
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


def _sizes(work: Work, sources: list[VectorSource], centroids: Vectors) -> npt.NDArray[np.int64]:
    counts = np.zeros(len(centroids), np.int64)
    for _, vectors in sample(sources, _ESTIMATE_ROWS, work.options.seed + 2):
        counts += np.bincount(assign(vectors, centroids)[0], minlength=len(centroids))
    return counts * -(-live_rows(sources) // max(1, int(counts.sum())))
