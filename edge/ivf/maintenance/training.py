"""Training of an index: when it is due, the number of lists, the codec, and k-means on a bounded sample.

`sample` draws random rows of a collection, for training, and as queries when recall is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edge.budget import MemoryBudget
from edge.ivf.base import NO_IDS, Codecs, CodecSpec, Ids, IndexOptions, Vectors
from edge.ivf.maintenance.work import Source, live_rows, workspace
from edge.ivf.parameters import Tuned
from edge.ivf.storage.manifest import State

_OUTGROWN = 4
"""The index is trained again when the number of vectors has grown or shrunk by this factor since the last training."""

_DRIFT = 1.15
_DRIFT_SHARE = 0.1
"""The index is also trained again when the newer vectors are at least this share of all, and their mean misfit is
`_DRIFT` times that of the older ones."""

_LISTS_PER_ROOT = 4
"""There are at most this many times sqrt(vectors) lists, because routing should not cost more than scanning."""

_SAMPLE_PER_LIST = 40
_MOST_SHARE = 0.8
"""Largest share of the rows in the sample. On the other rows the fit of the lists is measured."""

_ITERATIONS = 10
_CODEC_ROWS = 8192
_MOST = 256 << 20


def due(state: State, options: IndexOptions, tuned: Tuned | None = None) -> bool:
    """Whether the index needs its first centroids, has outgrown its centroids, or has drifted from them."""
    if state.training == 0:
        return choose_nlist(state.rows, options, tuned) > 1
    if state.rows >= _OUTGROWN * state.trained_rows or state.rows * _OUTGROWN <= state.trained_rows:
        return True
    if tuned is None and state.rows * 2 <= options.flat_limit:
        return True
    if state.newer_rows < max(1, _DRIFT_SHARE * state.rows):
        return False
    return state.newer_misfit / state.newer_rows > _DRIFT * state.trained_misfit


def choose_nlist(rows: int, options: IndexOptions, tuned: Tuned | None = None) -> int:
    """Number of lists for `rows` vectors; one, scanned exactly, for a small collection.

    An index that was tuned keeps its number of lists while it has about as many vectors as then. The number grows with
    the square root of the vectors, because the best number does.
    """
    if tuned is not None and rows < _OUTGROWN * tuned.rows:
        lists = tuned.parameters.lists
        return 1 if lists == 1 or rows < 4 else min(rows // 2, max(2, round(lists * (rows / tuned.rows) ** 0.5)))
    if rows <= options.flat_limit:
        return 1
    return max(2, int(min(rows / options.list_rows, _LISTS_PER_ROOT * rows**0.5)))


def choose_codec(options: IndexOptions, rows: int, dim: int, limit: int) -> str:
    """The codec for `rows` vectors under a memory limit of `limit` bytes, if the index was not tuned.

    `auto` takes sq8 as long as a quarter of the codes fits half of the limit, so that the lists in use stay resident.
    With sq8, codes take a quarter of the bytes, and re-scored results are almost always those of float32. For larger
    collections `auto` takes pq, which uses a byte for four components and loses more candidates.
    """
    if rows <= options.flat_limit:
        return "flat"
    if options.codec != "auto":
        return options.codec
    return "sq8" if rows * dim // 4 <= limit // 2 or dim % 4 else "pq"


def train(
    sources: Sequence[Source],
    codecs: Codecs,
    options: IndexOptions,
    dim: int,
    tuned: Tuned | None,
    *,
    budget: MemoryBudget,
    check: Callable[[int], None],
) -> tuple[CodecSpec, Vectors, Ids]:
    """Fits codec and centroids on a random sample of the sources.

    Args:
        tuned: the parameters that the index was tuned to, if it was.

    Returns:
        The codec, the centroids [nlist, dim], and the ids [n] of the sample, ascending.

    Raises:
        BudgetExceeded, ConfigError, CorruptBlock, StorageError: the memory does not suffice, the codec cannot be
            trained, or a row cannot be read.
    """
    rows = live_rows(sources)
    nlist = choose_nlist(rows, options, tuned)
    if nlist == 1:
        spec = codecs.train("flat", np.empty((0, dim), np.float32), seed=options.seed)
        return spec, np.zeros((1, dim), np.float32), NO_IDS
    if tuned is None:
        name, code_size = choose_codec(options, rows, dim, budget.limit), 0
    else:
        name, code_size = tuned.parameters.codec, tuned.parameters.code_size
    # k-means holds the centroids three times, and the products of a block of vectors with a block of centroids.
    # A rotation needs two more copies of the codec's sample.
    fixed = 3 * nlist * dim * 4 + (8 << 20) + (3 if name == "opq" else 1) * _CODEC_ROWS * dim * 4
    least = fixed + max(nlist, 256) * (dim * 2 + 8)
    with workspace(budget, "index training", least, _MOST) as lease:
        room = (lease.nbytes - fixed) // (2 * dim + 8)
        # A tuned index may have few lists. Its codec is not trained with fewer rows for that.
        wanted = max(_SAMPLE_PER_LIST * nlist, 0 if tuned is None else _CODEC_ROWS)
        count = min(int(_MOST_SHARE * rows), wanted, room)
        held = np.empty((count, dim), np.float16)
        held_ids = np.empty(count, np.int64)
        at = 0
        for ids, vectors in sample(sources, count, options.seed):
            held[at : at + len(vectors)] = vectors
            held_ids[at : at + len(vectors)] = ids
            at += len(vectors)
            check(at)
        centroids = codecs.cluster(held, nlist, iterations=_ITERATIONS, seed=options.seed)
        some = np.random.default_rng(options.seed).choice(count, min(count, _CODEC_ROWS), replace=False)
        spec = codecs.train(name, held[some].astype(np.float32), seed=options.seed, code_size=code_size)
    return spec, centroids, np.sort(held_ids)


_ROWS = 512
"""Rows that are read at a time."""


def draw(sources: Sequence[Source], count: int, random: np.random.Generator) -> Iterator[tuple[Source, Ids]]:
    """Draws `count` live rows, or all if there are fewer. Every row has the same chance.

    Yields:
        Each source with the numbers of its drawn rows, ascending.
    """
    left = live_rows(sources)
    count = min(count, left)
    for source in sources:
        share = int(random.hypergeometric(source.live, left - source.live, count)) if count else 0
        left -= source.live
        count -= share
        if share == 0:
            continue
        # Row numbers among the live rows are shifted past the deleted rows before them.
        chosen = np.sort(random.choice(source.live, share, replace=False, shuffle=False))
        if len(source.deleted):
            gaps = source.deleted - np.arange(len(source.deleted))
            chosen += np.searchsorted(gaps, chosen, side="right")
        yield source, chosen


def sample(sources: Sequence[Source], count: int, seed: int) -> Iterator[tuple[Ids, Vectors]]:
    """Reads `count` random rows, block by block: ids [n] and vectors [n, dim], in file order.

    Raises:
        CorruptBlock, StorageError: a row cannot be read.
    """
    for source, rows in draw(sources, count, np.random.default_rng(seed)):
        for start in range(0, len(rows), _ROWS):
            own = rows[start : start + _ROWS]
            yield source.segment.ids(own), source.segment.vectors(own)
