"""When an index is trained, and with what: the number of lists, the codec, k-means on a bounded sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge.budget import MemoryBudget
from edge.ivf.base import NO_IDS, Codecs, CodecSpec, Ids, IndexOptions, Vectors
from edge.ivf.manifest import State
from edge.ivf.rewriting import Source, live_rows, workspace
from edge.ivf.sampling import sample

_OUTGROWN = 4
"""Trained again when there are so many times more vectors than at the last training, or fewer."""

_DRIFT = 1.15
_DRIFT_SHARE = 0.1
"""Trained again when newer vectors, this share of all at least, misfit their lists by so much more than the older."""

_LISTS_PER_ROOT = 4
"""At most this times the square root of the vectors: routing should not cost more than scanning."""

_SAMPLE_PER_LIST = 40
_MOST_SHARE = 0.8
"""Of the rows, in the sample: on the others it is measured how well the lists fit."""

_ITERATIONS = 10
_CODEC_ROWS = 8192
_MOST = 256 << 20


def due(state: State, options: IndexOptions) -> bool:
    """Whether the index has no centroids and needs some, has outgrown those it has, or has drifted from them."""
    if state.training == 0:
        return state.rows > options.flat_limit
    if state.rows >= _OUTGROWN * state.trained_rows or state.rows * _OUTGROWN <= state.trained_rows:
        return True
    if state.rows * 2 <= options.flat_limit:
        return True
    if state.newer_rows < max(1, _DRIFT_SHARE * state.rows):
        return False
    return state.newer_misfit / state.newer_rows > _DRIFT * state.trained_misfit


def choose_nlist(rows: int, options: IndexOptions) -> int:
    """Lists for so many vectors; one, scanned exactly, for a small collection."""
    if rows <= options.flat_limit:
        return 1
    return max(2, int(min(rows / options.list_rows, _LISTS_PER_ROOT * rows**0.5)))


def choose_codec(options: IndexOptions, rows: int, dim: int, limit: int) -> str:
    """The codec for so many vectors under a memory limit of `limit` bytes.

    `auto` takes sq8 (a quarter of the bytes; re-scored results are those of float32 almost always) as long as a
    quarter of the codes fits half of the limit, so that the lists in use stay resident, and pq (a byte for four
    components, more candidates lost) for collections beyond that.
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
    *,
    budget: MemoryBudget,
    check: Callable[[int], None],
) -> tuple[CodecSpec, Vectors, Ids]:
    """Fits codec and centroids [nlist, dim] on a random sample of the sources, whose ids [n] are the third result,
    ascending.

    Raises:
        BudgetExceeded, ConfigError, CorruptBlock, StorageError.
    """
    rows = live_rows(sources)
    nlist = choose_nlist(rows, options)
    name = choose_codec(options, rows, dim, budget.limit)
    if nlist == 1:
        spec = codecs.train("flat", np.empty((0, dim), np.float32), seed=options.seed)
        return spec, np.zeros((1, dim), np.float32), NO_IDS
    # k-means holds the centroids three times, and products of blocks of vectors with blocks of centroids.
    fixed = 3 * nlist * dim * 4 + (8 << 20) + _CODEC_ROWS * dim * 4
    least = fixed + max(nlist, 256) * (dim * 2 + 8)
    with workspace(budget, "index training", least, _MOST) as lease:
        room = (lease.nbytes - fixed) // (2 * dim + 8)
        count = min(int(_MOST_SHARE * rows), _SAMPLE_PER_LIST * nlist, room)
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
        spec = codecs.train(name, held[some].astype(np.float32), seed=options.seed)
    return spec, centroids, np.sort(held_ids)
