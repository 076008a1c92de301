"""Splits lists that have grown too large, by 2-means over their own vectors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Ids, IndexOptions, Vectors
from edge.ivf.maintenance.work import Source, Work, carry_deletions
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import RowBlock

_TOO_LARGE = 4
"""A list is split if it has this many times the rows of the average list (or of `list_rows`, if that is more)."""

_SMALLER_SHARE = 0.02
"""A list is not split if one half would get less than this share, since its vectors are then mostly the same."""

_SAMPLE = 4096
_ITERATIONS = 8
_READ_NBYTES = 8 << 20


def split(work: Work) -> None:
    """Splits all lists that are too large, each once.

    The rows of these lists are copied into one new segment, list by list, and deleted in the old segments.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: splitting failed, and nothing has changed.
    """
    with work.write() as db:
        manifest = Manifest(db)
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
            manifest = Manifest(db)
            work.check_state(manifest, number_of_training, sources)
            stamp = manifest.touch(training=1 + secrets.randbits(62))
            manifest.set_centroids(centroids)
            manifest.add_segment(copy.entry)
            for source in sources:
                gone = np.sort(np.concatenate([np.empty(0, np.int64), *moved[source.segment.name]]))
                carry_deletions(manifest, source, copy.segment, stamp, gone)
                manifest.delete_rows(source.segment.name, gone, stamp)
    work.split += len(halves)
    work.trace.count("index.splits", len(halves))


def _live_by_list(sources: list[Source], nlist: int) -> npt.NDArray[np.int64]:
    """Number of live rows in each list, [nlist]."""
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


def _stream(sources: list[Source], number: int) -> Iterator[tuple[Source, RowBlock]]:
    """The rows of one list."""
    for source in sources:
        low, high = np.searchsorted(source.segment.parts["list"], (number, number + 1))
        for block in source.stream(range(int(low), int(high))):
            yield source, block


def _nearer(
    sources: list[Source], number: int, pair: Vectors
) -> Iterator[tuple[Source, RowBlock, npt.NDArray[np.int64]]]:
    """The rows of one list, with the number of the nearer of two centroids for each row."""
    for source, block in _stream(sources, number):
        yield source, block, (block.vectors @ pair.T).argmax(axis=1)


def _halves(sources: list[Source], number: int, rows: int, seed: int) -> Vectors | None:
    """Two unit centroids [2, dim], by spherical 2-means over (a sample of) a list's vectors.

    None if one half would be too small (`_SMALLER_SHARE`).
    """
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
