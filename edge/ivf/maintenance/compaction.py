"""Compaction and splitting: pending rows become segments, small segments are merged, large lists are split by 2-means,
and files that no committed state names are removed.

A segment is rewritten with all smaller ones once its deleted rows and theirs make up a tenth of it: at a million rows,
flushed by 2,048, three segments at most, and 16 copies of a row on average (simulated)."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from edge.errors import as_storage_error
from edge.ivf.base import Ids, IndexOptions, Vectors
from edge.ivf.maintenance.work import VectorSource, Work, carry_deletions, live_rows, put_in_place, retire
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segment_writer import SegmentWriter, append_by_list, assign, assign_nbytes, misfit
from edge.ivf.storage.segments import RowBlock


def flush(work: Work, least: int = 1) -> None:
    with ExitStack() as stack:
        with work.write() as db:
            manifest = IndexManifest(db)
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
            manifest = IndexManifest(db)
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
    work.report.flushed += int(same.sum())
    work.trace.count("index.flushed", int(same.sum()))


_RATIO = 0.1

_SLICE_NBYTES = 8 << 20
"""Memory for reading one part of a source (at most 4 MiB, and a copy without the deleted rows)."""


def merge(work: Work) -> None:
    """Merges the segments that are due; if `work.full`, all of them into one without deleted rows."""
    with work.write() as db:
        manifest = IndexManifest(db)
        sources = list(work.sources(manifest).values())
        training, number_of_training = work.snapshots.training(manifest), manifest.state().training
    chosen = _everything(sources) if work.full else _due(sources)
    if not chosen:
        return
    total = live_rows(chosen)
    spec = training.codec.spec
    with work.budget.reserve("index merge", _SLICE_NBYTES), SegmentWriter(work.folder, spec, work.budget) as writer:
        done = 0
        for number in np.unique(np.concatenate([source.segment.parts["list"] for source in chosen])).tolist():
            work.check("merge", done, total)
            for _, block in _stream(chosen, number):
                writer.append(number, block.ids, block.codes, block.vectors)
                done += len(block.ids)
        copy = work.copied(chosen, writer, spec) if total else None
        with work.write() as db:
            manifest = IndexManifest(db)
            work.check_state(manifest, number_of_training, chosen)
            stamp = manifest.touch()
            if copy is not None:
                put_in_place(manifest, copy, stamp)
            else:
                retire(manifest, chosen)
    reclaimed = sum(len(source.deleted) for source in chosen)
    work.report.merged += total
    work.report.reclaimed += reclaimed
    work.trace.count("index.merged", total)
    work.trace.count("index.reclaimed", reclaimed)


def _everything(sources: list[VectorSource]) -> list[VectorSource]:
    return sources if len(sources) > 1 or any(len(source.deleted) for source in sources) else []


def _due(sources: Iterable[VectorSource]) -> list[VectorSource]:
    by_size = sorted(sources, key=lambda source: source.live)
    chosen = 0
    smaller = 0
    for position, source in enumerate(by_size):
        worn = smaller + len(source.deleted)
        if worn and worn >= _RATIO * source.live:
            chosen = position + 1
        smaller += source.live
    return by_size[:chosen]


_OURS = re.compile(r"[0-9a-f]{8,}(?:\.blk|\.blk\.tmp|\.tmp|\.run\.tmp)")
"""File names that this package makes. The folder may be a link to a folder with other people's files."""


def clean(work: Work, *, at_once: bool = False) -> None:
    """Removes segments that were retired `IndexOptions.grace_seconds` ago, or `at_once`, and are not open here; and
    files that no state ever named, in a write transaction, so that no writer can be making one."""
    with work.write() as db:
        manifest = IndexManifest(db)
        work.snapshots.current(db)  # releases segments that only an older state needed
        retired = dict(manifest.retired())
        known = {*retired, *manifest.segment_names()}
        with as_storage_error(f"{work.folder} cannot be read"):
            found = [path.name for path in work.folder.iterdir()] if work.folder.exists() else []
        stray = [name for name in found if name not in known and _OURS.fullmatch(name)]
        removed = [name for name in stray if work.open_segments.remove(name)]
        grace = 0.0 if at_once else work.options.grace_seconds
        ripe = [name for name, at in retired.items() if not 0 <= time.time() - at < grace]
        gone = [name for name in ripe if work.open_segments.remove(name)]
        manifest.forget_retired(gone)
    work.report.removed_files += len(removed) + len(gone)


_TOO_LARGE = 4
"""A list is split if it has this many times the rows of the average list (or of `list_rows`, if that is more)."""

_SMALLER_SHARE = 0.02
"""A list is not split if one half would get less than this share, since its vectors are then mostly the same."""

_SAMPLE = 4096
_ITERATIONS = 8
_READ_NBYTES = 8 << 20


def split(work: Work) -> None:
    """Splits all lists that are too large, each once. Their rows are copied into one new segment, list by list."""
    with work.write() as db:
        manifest = IndexManifest(db)
        if manifest.state().quantizer:
            return  # the lists are those of other indexes, too
        training, number_of_training = work.snapshots.training(manifest), manifest.state().training
        sources = list(work.sources(manifest).values())
    nlist = len(training.centroids)
    rows = _live_by_list(sources, nlist)
    large = _too_large(rows, work.options)
    if not len(large):
        return
    dim, codec = work.snapshots.dim, training.codec
    moved: dict[str, list[Ids]] = {source.segment.name: [] for source in sources}
    centroids: dict[int, Vectors] = {}
    with (
        work.budget.reserve("index splitting", _READ_NBYTES + _SAMPLE * (4 * dim + 16)),
        SegmentWriter(work.folder, codec.spec, work.budget) as writer,
    ):
        # The lists of a segment ascend. So the halves that keep their numbers come first, then the new ones.
        halves: list[tuple[int, Vectors]] = []
        for number in large.tolist():
            work.check("split", len(halves), len(large))
            pair = _halves(sources, number, int(rows[number]), work.options.seed)
            if pair is not None:
                halves.append((number, pair))
        for which in (0, 1):
            for position, (number, pair) in enumerate(halves):
                own = number if which == 0 else nlist + position
                centroids[own] = pair[which]
                for source, block, near in _nearer(sources, number, pair):
                    chosen = near == which
                    moved[source.segment.name].append(block.rows[chosen])
                    writer.append(own, block.ids[chosen], block.codes[chosen], block.vectors[chosen])
        if not halves:
            return
        copy = work.copied(sources, writer, codec.spec)
        with work.write() as db:
            manifest = IndexManifest(db)
            work.check_state(manifest, number_of_training, sources)
            stamp = manifest.touch(training=1 + secrets.randbits(62))
            manifest.set_centroids(centroids)
            manifest.add_segment(copy.entry)
            for source in sources:
                gone = np.sort(np.concatenate([np.empty(0, np.int64), *moved[source.segment.name]]))
                carry_deletions(manifest, source, copy.segment, stamp, gone)
                manifest.delete_rows(source.segment.name, gone, stamp)
    work.report.split += len(halves)
    work.trace.count("index.splits", len(halves))


def _live_by_list(sources: list[VectorSource], nlist: int) -> npt.NDArray[np.int64]:
    rows = np.zeros(nlist, np.int64)
    for source in sources:
        segment = source.segment
        np.add.at(rows, segment.parts["list"], segment.parts["rows"].astype(np.int64))
        np.subtract.at(rows, segment.lists(source.deleted), 1)
    return rows


def _too_large(rows: npt.NDArray[np.int64], options: IndexOptions) -> npt.NDArray[np.int64]:
    if len(rows) == 1:  # flat
        return np.empty(0, np.int64)
    return np.flatnonzero(rows > _TOO_LARGE * max(options.list_rows, float(rows.mean())))


def _stream(sources: list[VectorSource], number: int) -> Iterator[tuple[VectorSource, RowBlock]]:
    for source in sources:
        low, high = np.searchsorted(source.segment.parts["list"], (number, number + 1))
        for block in source.stream(range(int(low), int(high))):
            yield source, block


def _nearer(
    sources: list[VectorSource], number: int, pair: Vectors
) -> Iterator[tuple[VectorSource, RowBlock, npt.NDArray[np.int64]]]:
    for source, block in _stream(sources, number):
        yield source, block, (block.vectors @ pair.T).argmax(axis=1)


def _halves(sources: list[VectorSource], number: int, rows: int, seed: int) -> Vectors | None:
    """Two unit centroids [2, dim] of a list, by spherical 2-means over a sample; None if a half would be too small."""
    random = np.random.default_rng((seed, number))
    share = min(1.0, _SAMPLE / rows)
    held: list[Vectors] = []
    for _, block in _stream(sources, number):
        held.append(block.vectors[random.random(len(block.ids)) < share])
    vectors = np.concatenate(held)[:_SAMPLE]
    # Two ends of the list: the vector farthest from a random one, and the vector farthest from that one.
    first = vectors[(vectors @ vectors[random.integers(len(vectors))]).argmin()]
    pair = np.stack((first, vectors[(vectors @ first).argmin()]))
    for _ in range(_ITERATIONS):
        pair = pair / np.maximum(np.linalg.norm(pair, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        near = (vectors @ pair.T).argmax(axis=1)
        counts = np.bincount(near, minlength=2)
        if counts.min() <= _SMALLER_SHARE * len(vectors):
            return None
        pair = np.stack([vectors[near == which].mean(axis=0) for which in (0, 1)])
    unit: Vectors = pair / np.maximum(np.linalg.norm(pair, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return unit
