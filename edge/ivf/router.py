"""Which lists a query probes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Vectors


def probe(queries: Vectors, centroids: Vectors, nprobe: int) -> npt.NDArray[np.int64]:
    """The `nprobe` lists with the largest inner product of centroid and query: [q, nprobe], best first, the lower
    number first among equals.

    Each query is multiplied on its own, so that what it probes does not depend on its batch.
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
