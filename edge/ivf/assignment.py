"""Assignment of vectors to lists, and writing of vectors list by list."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Codec, Ids, Vectors
from edge.ivf.storage.segment_writer import SegmentWriter

Lists = npt.NDArray[np.int32]

_ROWS = 1024
"""Vectors multiplied with the centroids, or encoded, at a time: enough to occupy the cores, and little memory."""


def assign(vectors: Vectors, centroids: Vectors) -> tuple[Lists, Vectors]:
    """Assigns each of `vectors` [n, dim] to the list whose centroid has the largest inner product with the vector.

    Holds `assign_nbytes(nlist)` bytes meanwhile.

    Args:
        centroids: [nlist, dim].

    Returns:
        The list of each vector [n], and the inner product with its centroid [n].
    """
    lists = np.zeros(len(vectors), np.int32)
    scores = np.zeros(len(vectors), np.float32)
    if len(centroids) > 1:
        for start in range(0, len(vectors), _ROWS):
            products = vectors[start : start + _ROWS] @ centroids.T
            best = products.argmax(axis=1)
            lists[start : start + _ROWS] = best
            scores[start : start + _ROWS] = np.take_along_axis(products, best[:, None], axis=1)[:, 0]
    return lists, scores


def assign_nbytes(nlist: int) -> int:
    """Bytes of the products that `assign` holds."""
    return _ROWS * nlist * 4


def misfit(vectors: Vectors, scores: Vectors) -> float:
    """Sum over `vectors` [n, dim] of 1 - cosine(vector, centroid of its list).

    Args:
        scores: inner product [n] of each vector with the centroid of its list. Centroids have unit length.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return float(len(vectors) - np.sum(scores / np.maximum(norms, np.finfo(np.float32).tiny)))


def append_by_list(writer: SegmentWriter, codec: Codec, lists: Lists, ids: Ids, vectors: Vectors) -> None:
    """Writes rows sorted by list. No row may belong to a list before the writer's last one.

    Args:
        lists, ids, vectors: [n], [n], [n, dim]. The vectors may have any strides.
    """
    order = np.argsort(lists, kind="stable")
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        block = np.ascontiguousarray(vectors[rows])
        codes = codec.encode(block)
        own = lists[rows]
        cuts = (np.flatnonzero(np.diff(own)) + 1).tolist()
        for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            writer.append(int(own[low]), ids[rows[low:high]], codes[low:high], block[low:high])
