"""`Sampled`: recall and work of any parameters, computed from one pass over the rows: codes do not depend on lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.base import DEVIATIONS, Codec, CodecSpec, Parameters, Vectors
from edge.ivf.maintenance.training import BLOCK, NEIGHBOURS, Best, blocks, pass_nbytes
from edge.ivf.maintenance.work import VectorSource, live_rows
from edge.ivf.storage.segment_writer import assign, assign_nbytes
from edge.ivf.storage.snapshots import SnapshotLease

KEPT = 320
"""Best rows that are kept of each query by each codec. Rows beyond them are taken as not found."""

_BOUND = 2.0
"""Standard errors by which the sample's recall must exceed a goal; 98 of 100 samples then reach it."""

Numbers = npt.NDArray[np.int32]
CodecKey = tuple[str, int]
"""Name of a codec, and bytes of its codes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Means of a query: recall@10, the same less `_BOUND` standard errors, rows scanned, exact scores."""

    recall: float
    sure: float
    rows: float
    rescored: float


@dataclass(frozen=True, slots=True)
class _Lists:
    """One number of lists: those probed before each query's neighbours [q, NEIGHBOURS] and each codec's kept rows [q,
    KEPT], and the mean rows in the first 1, 2, ... lists [lists]."""

    truth: Numbers
    scanned: npt.NDArray[np.float64]
    ranks: Mapping[CodecKey, Numbers]


@dataclass(frozen=True, slots=True)
class _Coded:
    """The best rows of each query by one codec, best first: scores [q, KEPT], the place of each neighbour [q,
    NEIGHBOURS] (or KEPT), and the largest distance at which a row is scored exactly [q]."""

    scores: Vectors
    places: Numbers
    margin: npt.NDArray[np.float64]


class Sampled:
    """Sampled queries, their exact neighbours, and the places of both in every candidate index."""

    def __init__(
        self,
        sources: Sequence[VectorSource],
        queries: Vectors,
        centroids: Mapping[int, Vectors],
        codecs: Mapping[CodecKey, Codec],
        *,
        budget: MemoryBudget,
        check: Callable[[int], None],
    ) -> None:
        """Reads every row once, for queries [q, dim], centroids [lists, dim] by number of lists, and codecs."""
        self.rows = live_rows(sources)
        self.codecs = tuple(codecs)
        dim, count = queries.shape[1], len(queries)
        number = sum(not codec.spec.exact for codec in codecs.values())
        kept, needed = sampled_nbytes(count, self.rows, list(centroids), number, dim, sources[0].segment.spec)
        self._held = SnapshotLease(budget, kept)
        with budget.reserve("index tuning", needed):
            exact = Best(count, NEIGHBOURS)
            coded = {key: Best(count, KEPT) for key, codec in codecs.items() if not codec.spec.exact}
            lists_of = {lists: np.empty(self.rows, np.int32) for lists in centroids}
            read = 0
            for own, _, _, vectors in blocks(sources):
                places = np.arange(read, read + len(own))
                exact.offer(queries, vectors, places, np.zeros(len(own), np.int32))
                for key, best in coded.items():
                    codec = codecs[key]
                    best.offer(queries, codec.decode(codec.encode(vectors)), places, np.zeros(len(own), np.int32))
                for lists, own_centroids in centroids.items():
                    lists_of[lists][places] = assign(vectors, own_centroids)[0]
                read += len(own)
                check(read)
            self._present = exact.ids >= 0
            self._coded = {key: _coded(best, exact, codecs[key], queries) for key, best in coded.items()}
            ids = {key: np.take_along_axis(best.ids, _order(best), axis=1) for key, best in coded.items()}
            self._lists = {1: _one_list(self.rows, exact, ids)}
            for lists, own_centroids in centroids.items():
                self._lists[lists] = _placed(queries @ own_centroids.T, lists_of[lists], exact, ids)

    def scanned(self, lists: int, nprobe: int) -> float:
        return float(self._lists[lists].scanned[nprobe - 1])

    def bound(self, lists: int, nprobe: int) -> float:
        """A recall that no codec exceeds with `nprobe` lists: that of exact codes."""
        found = self._present & (self._lists[lists].truth < nprobe)
        return float((found.sum(axis=1) / np.maximum(1, self._present.sum(axis=1))).mean())

    def expected(self, parameters: Parameters, nprobe: int) -> Expected:
        """The result of a search of `nprobe` lists with these parameters."""
        lists, coded = self._lists[parameters.lists], self._coded.get((parameters.codec, parameters.code_size))
        found = self._present & (lists.truth < nprobe)
        rows = self.scanned(parameters.lists, nprobe)
        rescored = 0.0
        if coded is not None:
            ranks = lists.ranks[parameters.codec, parameters.code_size]
            probed = ranks < nprobe
            before = probed.cumsum(axis=1)
            # The score of the last result, if results were chosen by their codes.
            last = np.where(probed & (before == NEIGHBOURS), coded.scores, np.inf).min(axis=1)
            floor = np.where(np.isinf(last), -np.inf, last) - coded.margin
            candidates = probed & (before <= parameters.rescore * NEIGHBOURS) & (coded.scores >= floor[:, None])
            padded = np.concatenate((candidates, np.zeros((len(candidates), 1), np.bool_)), axis=1)
            found &= np.take_along_axis(padded, coded.places, axis=1)
            rescored = float(candidates.sum(axis=1).mean())
        recall = found.sum(axis=1) / np.maximum(1, self._present.sum(axis=1))
        error = float(recall.std() / len(recall) ** 0.5)
        mean = float(recall.mean())
        return Expected(mean, mean - _BOUND * error, rows, rescored)


def sampled_nbytes(
    count: int, rows: int, lists: Sequence[int], coded: int, dim: int, spec: CodecSpec
) -> tuple[int, int]:
    """Bytes that `Sampled` keeps, and that its pass takes in addition. `coded` codecs are not exact; the rows lie in
    segments of `spec`."""
    cells = count * KEPT * coded
    # For each cell the score and a rank for each number of lists stay; `expected` needs some more for one codec.
    kept = cells * (8 + 4 * len(lists)) + 24 * count * KEPT
    needed = 48 * cells + 4 * rows * len(lists) + 12 * count * sum(lists)
    return kept, needed + pass_nbytes(dim, count, spec) + BLOCK * 12 * dim + assign_nbytes(max([1, *lists]))


def _order(best: Best) -> npt.NDArray[np.int64]:
    return np.argsort(-best.scores, axis=1, kind="stable")


def _coded(best: Best, exact: Best, codec: Codec, queries: Vectors) -> _Coded:
    order = _order(best)
    ids, scores = np.take_along_axis(best.ids, order, axis=1), np.take_along_axis(best.scores, order, axis=1)
    places = np.full(exact.ids.shape, KEPT, np.int32)
    for column in range(exact.ids.shape[1]):
        same = (ids == exact.ids[:, column : column + 1]) & (ids >= 0)
        places[:, column] = np.where(same.any(axis=1), same.argmax(axis=1), KEPT)
    margin = np.array([2 * DEVIATIONS * codec.deviation(query) for query in queries])
    return _Coded(scores, places, margin)


def _one_list(rows: int, exact: Best, ids: Mapping[CodecKey, npt.NDArray[np.int64]]) -> _Lists:
    ranks = {key: np.zeros(own.shape, np.int32) for key, own in ids.items()}
    return _Lists(np.zeros(exact.ids.shape, np.int32), np.array([float(rows)]), ranks)


def _placed(nearness: Vectors, lists_of: Numbers, exact: Best, ids: Mapping[CodecKey, npt.NDArray[np.int64]]) -> _Lists:
    """One number of lists, from inner products of queries and centroids [q, lists], and the list of each row [rows]."""
    count, lists = nearness.shape
    order = np.argsort(-nearness, axis=1, kind="stable")
    rank = np.empty((count, lists), np.int32)
    np.put_along_axis(rank, order, np.arange(lists, dtype=np.int32)[None, :], axis=1)
    sizes = np.bincount(lists_of, minlength=lists)
    scanned = np.cumsum(sizes[order].mean(axis=0))

    def before(rows: npt.NDArray[np.int64]) -> Numbers:
        own = np.take_along_axis(rank, lists_of[np.maximum(rows, 0)].astype(np.int64), axis=1)
        return np.where(rows >= 0, own, lists).astype(np.int32)

    return _Lists(before(exact.ids), scanned, {key: before(rows) for key, rows in ids.items()})
