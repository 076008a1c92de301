"""Choice of the lists that a query probes."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from edge.distinct import distinct
from edge.errors import InputError
from edge.ivf.base import Snapshot, Vectors


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
