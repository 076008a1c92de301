"""Progressive cluster pruning (GRATING, section 4.1): who is safely in, who is safely out, who must go on.

After a layer, candidates have provisional scores. Once these are dispersed (coefficient of variation above a
threshold), their log-odds are split into one-dimensional clusters; clusters above the one that holds the K-th candidate
are selected, those below are dropped, and only the boundary cluster needs further layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Mode = Literal["top-k", "ranked"]

MAX_CLUSTERS = 8
"""More clusters than this split noise; the boundary cluster then no longer shields candidates that may still change."""

_BLOCK = 1 << 16
"""Values of a temporary while clustering: half a megabyte, whatever the pool's size."""

_SEPARATED = 0.5
"""Mean silhouette below which clusters are not distinct (the customary bound of a reasonable structure)."""

_TIE = 1e-9
"""Scores closer than this count as equal when the pool is judged degenerate."""


_SURE = 1e-9
"""Probabilities nearer to 0 or 1 are not told apart."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What pruning decided after one layer, over the candidates that were active.

    Attributes:
        layer: layers run so far, so the first layer's decision has 1.
        cv: coefficient of variation of the scores (std / mean).
        clusters: scores' cluster numbers [active], 0 the highest; empty if no clustering took place.
        selected, dropped, deferred: candidate numbers; `selected` best first.
        finished: nothing needs another layer.
    """

    layer: int
    cv: float
    clusters: npt.NDArray[np.int64]
    selected: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]
    deferred: npt.NDArray[np.int64]
    finished: bool


class ProgressivePruning:
    """The state of one request's pruning: remaining slots and the order in which winners left."""

    def __init__(
        self,
        k: int,
        *,
        mode: Mode = "top-k",
        threshold: float = math.inf,
        first_layer: int = 1,
        candidates: int,
        cluster: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.int64]] | None = None,
    ) -> None:
        """Prepares for a pool of `candidates`.

        Args:
            k: winners wanted.
            mode: `top-k` lets winners stop early too, `ranked` drops only the hopeless.
            threshold: dispersion above which clusters are trusted; infinity never prunes.
            first_layer: layers to run before scores mean anything (some models' heads are noise before).
            cluster: stands for `cluster_scores`, of log-odds, where many passes share their partitions.

        Raises:
            InputError: k is not positive.
        """
        if k <= 0:
            raise InputError(f"the number of results must be at least 1, not {k}")
        self.k = min(k, candidates)
        # When everybody wins, only the order is left to ask for.
        self.mode: Mode = "ranked" if k >= candidates else mode
        self.threshold = threshold
        self.first_layer = first_layer
        self.remaining = self.k
        self._cluster = cluster or cluster_scores

    def wants(self, layer: int) -> bool:
        """Whether scores after `layer` layers would be looked at: computing them is wasted otherwise."""
        return layer >= self.first_layer and math.isfinite(self.threshold)

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision:
        """Judges the active candidates after `layer` layers.

        Args:
            ids: candidate numbers [active].
            scores: their provisional scores [active], probabilities, in the order of `ids`.
        """
        none = np.empty(0, np.int64)
        cv = dispersion(scores)
        go_on = Decision(layer, cv, none, none, none, ids, finished=False)
        if not self.wants(layer) or cv <= self.threshold:
            return go_on
        labels = self._cluster(log_odds(scores))
        # K-th candidate by score; ties go to the smaller number, as in the final ranking.
        order = np.lexsort((ids, -scores))
        boundary = labels[order[min(self.remaining, len(ids)) - 1]]
        above, below = labels < boundary, labels > boundary
        if self.mode == "ranked":
            keep = ~below
            return Decision(layer, cv, labels, none, ids[below], ids[keep], finished=False)
        winners = order[above[order]]
        deferred = ids[labels == boundary]
        self.remaining -= len(winners)
        selected = ids[winners]
        if len(deferred) == self.remaining:
            inside = order[(labels == boundary)[order]]
            selected = np.concatenate((selected, ids[inside]))
            self.remaining = 0
            return Decision(layer, cv, labels, selected, ids[below], none, finished=True)
        return Decision(layer, cv, labels, selected, ids[below], deferred, finished=False)


def log_odds(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log(p / (1 - p)) of probabilities [n].

    Clusters are found there: most candidates of a pool are irrelevant, their probabilities crowd near 0, and the K-th
    is often among them.
    """
    inside = np.clip(scores, _SURE, 1 - _SURE)
    odds: npt.NDArray[np.float64] = np.log(inside) - np.log1p(-inside)
    return odds


def dispersion(scores: npt.NDArray[np.float64]) -> float:
    """Coefficient of variation, std / mean, of positive scores [n].

    A degenerate pool (fewer than two candidates, all equal, all zero) has no dispersion: 0. Nearly-zero scores all
    round would make the ratio explode on noise, so the mean is taken to be at least 1e-6.
    """
    if len(scores) < 2 or float(np.ptp(scores)) <= _TIE:
        return 0.0
    return float(np.std(scores) / max(float(np.mean(scores)), 1e-6))


def cluster_scores(scores: npt.NDArray[np.float64], max_clusters: int = MAX_CLUSTERS) -> npt.NDArray[np.int64]:
    """Exact one-dimensional k-means with the number of clusters chosen from the data.

    For each number of clusters the within-cluster sum of squares is minimised exactly by dynamic programming over the
    sorted scores; the number is the one with the largest mean silhouette (Rousseeuw 1987), the smaller one on a tie. A
    pool whose best silhouette is below 0.5 has no clusters worth the name and stays in one piece.

    Args:
        scores: [n], n >= 1.

    Returns:
        Cluster number of each score [n], 0 for the cluster with the highest scores.
    """
    order = np.argsort(-scores, kind="stable")
    values = scores[order]
    n = len(values)
    labels = np.zeros(n, np.int64)
    distinct = int(np.count_nonzero(np.diff(values))) + 1
    most = min(max_clusters, distinct)
    if most < 2:
        return labels
    starts = _partitions(values, most)[1]
    best, bounds = _SEPARATED, [0]
    for clusters in range(2, most + 1):
        candidate = _bounds(starts, clusters)
        quality = silhouette(values, candidate)
        if quality > best + _TIE:
            best, bounds = quality, candidate
    for cluster, start in enumerate(bounds):
        labels[order[start:]] = cluster
    return labels


def silhouette(values: npt.NDArray[np.float64], bounds: list[int]) -> float:
    """Mean silhouette of sorted values [n] cut into clusters that start at `bounds` (the first is 0).

    On a line the nearest other cluster is a neighbour, and its mean distance the distance to its mean, so prefix sums
    give the exact value in linear time. A cluster of one counts 0, as usual.
    """
    sums = np.concatenate(([0.0], np.cumsum(values)))
    edges = [*bounds, len(values)]
    means = [float((sums[b] - sums[a]) / (b - a)) for a, b in pairwise(edges)]
    total = 0.0
    for cluster, (low, high) in enumerate(pairwise(edges)):
        size = high - low
        if size == 1:
            continue
        inside = values[low:high]
        rank = np.arange(size)
        before = sums[low:high] - sums[low]  # sum of the values that precede each one in its cluster
        after = sums[high] - sums[low + 1 : high + 1]
        # Values fall: those before are larger, those after smaller.
        own = (before - rank * inside + (size - 1 - rank) * inside - after) / (size - 1)
        others = [means[c] for c in (cluster - 1, cluster + 1) if 0 <= c < len(means)]
        nearest = np.min([np.abs(inside - mean) for mean in others], axis=0)
        larger = np.maximum(own, nearest)
        total += float(np.sum(np.where(larger > _TIE, (nearest - own) / np.where(larger > _TIE, larger, 1.0), 0.0)))
    return total / len(values)


def _bounds(starts: npt.NDArray[np.int64], clusters: int) -> list[int]:
    """Where each cluster starts in the best partition into so many, from the table of last clusters."""
    bounds: list[int] = []
    end = starts.shape[1]
    for last in range(clusters - 1, -1, -1):
        end = int(starts[last, end - 1])
        bounds.insert(0, end)
    return bounds


def _partitions(values: npt.NDArray[np.float64], most: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Least within-cluster sums of squares of sorted values for 1 ... `most` clusters, and the first position of the
    last cluster for each prefix, [most, n]. O(most * n^2), a block of prefixes at a time."""
    n = len(values)
    centred = values - values.mean()  # keeps the differences of sums of squares exact
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    squares = np.concatenate(([0.0], np.cumsum(centred**2)))
    first = np.arange(n)[:, None]
    best = np.full((most, n), np.inf)
    starts = np.zeros((most, n), np.int64)
    step = max(1, _BLOCK // n)
    for low in range(0, n, step):
        end = np.arange(low, min(low + step, n))[None, :] + 1  # one past the last position of each prefix
        length = np.maximum(end - first, 1)
        spread = squares[end] - squares[first] - (sums[end] - sums[first]) ** 2 / length
        spread = np.where(first < end, np.maximum(spread, 0.0), np.inf)
        columns = slice(low, low + end.size)
        best[0, columns] = spread[0]
        for clusters in range(1, most):
            # The last cluster starts at `first`; what stands before it needs one cluster less. Later blocks only look
            # back, so going block by block is exact; inside a block, earlier prefixes of one cluster less are ready.
            totals = best[clusters - 1, : n - 1, None] + spread[1:]
            starts[clusters, columns] = np.argmin(totals, axis=0) + 1
            best[clusters, columns] = np.min(totals, axis=0)
    return best[:, n - 1], starts
