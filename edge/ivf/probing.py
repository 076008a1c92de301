"""The lists that a search probes: how many, and which for each query."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from edge.blocks import distinct
from edge.errors import InputError
from edge.ivf.base import Snapshot, Vectors


def lists_to_probe(snapshot: Snapshot, target: float) -> int:
    """The number of lists to probe if the caller of a search names neither a number nor a recall.

    A tuned index probes at least the share of its lists that was chosen, even where its own curve ends earlier.

    Args:
        target: the recall to aim at where the index was not tuned.
    """
    if snapshot.tuned is None:
        return choose_nprobe(snapshot, target)
    chosen, of = snapshot.tuned.nprobe, snapshot.tuned.parameters.lists
    share = min(snapshot.nlist, -(-chosen * snapshot.nlist // of))
    return max(share, choose_nprobe(snapshot, snapshot.tuned.aim))


def choose_nprobe(snapshot: Snapshot, recall: float) -> int:
    """The fewest lists that reached `recall` when it was measured.

    If no number of lists reached it, the fewest that reached the highest measured recall; if nothing was measured, all
    lists.

    Raises:
        InputError: `recall` is not between 0 and 1.
    """
    if not 0 < recall <= 1:
        raise InputError(f"recall is above 0 and at most 1, not {recall}")
    return probed(snapshot.recall, recall)[0] if snapshot.recall else snapshot.nlist


def probed(curve: Sequence[tuple[int, float]], recall: float) -> tuple[int, float]:
    """The first point (lists, recall@10) of an ascending measured curve that reaches `recall`.

    If there is none, the first point that reaches the highest recall of the curve.
    """
    wanted = min(recall, curve[-1][1])
    return next(point for point in curve if point[1] >= wanted)


def probe(queries: Vectors, centroids: Vectors, nprobe: int) -> npt.NDArray[np.int64]:
    """The `nprobe` lists whose centroids have the largest inner products with each query.

    Each query is multiplied alone, so that its lists do not depend on its batch.

    Returns:
        [q, nprobe], best first, the lower number first among equals.
    """
    nlist = len(centroids)
    nprobe = min(nprobe, nlist)
    lists = np.empty((len(queries), nprobe), np.int64)
    for row, query in zip(lists, queries, strict=True):
        scores = centroids @ query
        best = np.arange(nlist)
        if nprobe < nlist:
            best = np.flatnonzero(scores >= np.partition(scores, nlist - nprobe)[nlist - nprobe])
        row[:] = best[np.lexsort((best, -scores[best]))[:nprobe]]
    return lists


def keys_of(snapshot: Snapshot, queries: Vectors, nprobe: int) -> set[Hashable]:
    """Keys of the list parts that any of `queries` [q, dim] probes."""
    numbers = distinct(probe(queries, snapshot.centroids, nprobe)).tolist()
    return {part.key for number in numbers for part in snapshot.lists[number]}


def checked_queries(queries: Vectors, dim: int) -> Vectors:
    """Queries as contiguous float32 [q, dim].

    Raises:
        InputError: the shape is wrong, or a value is not finite.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InputError(f"queries must be [q, {dim}], not {list(queries.shape)}")
    if not np.isfinite(queries).all():
        raise InputError("a query is not finite")
    return queries
