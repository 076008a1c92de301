"""Progressive cluster pruning (GRATING, section 4.1): selects safe winners and drops hopeless candidates early.

Once the scores after a layer are dispersed (coefficient of variation above a threshold), their log-odds are split into
one-dimensional clusters. Those above the K-th candidate's are selected, those below dropped.

`BoundedPruning` uses the measured deviation between each layer's provisional scores and the final ones: a candidate is
dropped once it is too far behind. docs/decisions/streaming-and-pruning.md compares both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Mode = Literal["top-k", "ranked"]

MAX_CLUSTERS = 8
"""With more clusters noise is split."""

_BLOCK = 1 << 16
"""Values of a temporary array while clustering: half a megabyte, for any pool size."""

_SEPARATED = 0.5
"""Mean silhouette below which clusters count as not distinct (the customary bound for a reasonable structure)."""

_TIE = 1e-9
"""Scores closer than this count as equal in the test for a degenerate pool."""


_SURE = 1e-9
"""Probabilities nearer to 0 or 1 than this are treated as equal."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision after `layer` layers: the scores' coefficient of variation, the cluster of each (0 the highest;
    empty without clustering), candidate numbers (`selected` best first), and whether it is the last."""

    layer: int
    cv: float
    clusters: npt.NDArray[np.int64]
    selected: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]
    deferred: npt.NDArray[np.int64]
    finished: bool


class _Pruning:
    """The state of one request's pruning: the remaining places among the results."""

    def __init__(self, k: int, mode: Mode, candidates: int) -> None:
        if k <= 0:
            raise InputError(f"the number of results must be at least 1, not {k}")
        self.k = min(k, candidates)
        # If every candidate is a result, only the order remains to be found.
        self.mode: Mode = "ranked" if k >= candidates else mode
        self.remaining = self.k


class ProgressivePruning(_Pruning):
    def __init__(self, k: int, *, mode: Mode = "top-k", threshold: float = math.inf, candidates: int) -> None:
        """With the mode `top-k` winners stop early, too; `ranked` drops only hopeless candidates. Clusters are trusted
        above the dispersion `threshold`; infinity prunes nothing."""
        super().__init__(k, mode, candidates)
        self.threshold = threshold

    def wants(self, layer: int) -> bool:
        return layer > 0 and math.isfinite(self.threshold)

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision:
        """Judges the active candidates [active] after `layer` layers by their scores [active], probabilities."""
        none = np.empty(0, np.int64)
        cv = dispersion(scores)
        go_on = Decision(layer, cv, none, none, none, ids, finished=False)
        if not self.wants(layer) or cv <= self.threshold:
            return go_on
        labels = cluster_scores(log_odds(scores))
        # K-th candidate by score. Among equal scores the smaller number comes first, as in the final ranking.
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
    """log(p / (1 - p)) of probabilities [n]: those of a pool crowd near 0."""
    inside = np.clip(scores, _SURE, 1 - _SURE)
    odds: npt.NDArray[np.float64] = np.log(inside) - np.log1p(-inside)
    return odds


def dispersion(scores: npt.NDArray[np.float64]) -> float:
    """Coefficient of variation, std / mean, of positive scores [n]; 0 for fewer than two, all equal or all zero. The
    mean is taken as at least 1e-6."""
    if len(scores) < 2 or float(np.ptp(scores)) <= _TIE:
        return 0.0
    return float(np.std(scores) / max(float(np.mean(scores)), 1e-6))


def cluster_scores(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The cluster of each score [n], 0 the highest, by exact one-dimensional k-means (dynamic programming), with the
    number of the largest mean silhouette (Rousseeuw 1987), the smaller on a tie; one if that is below 0.5."""
    order = np.argsort(-scores, kind="stable")
    values = scores[order]
    n = len(values)
    labels = np.zeros(n, np.int64)
    distinct = int(np.count_nonzero(np.diff(values))) + 1
    most = min(MAX_CLUSTERS, distinct)
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
    """Mean silhouette of sorted values [n] that are cut into clusters starting at `bounds`. On a line prefix sums give
    it in linear time. A cluster of one value has 0."""
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
        # Values are descending: those before are larger, those after are smaller.
        own = (before - rank * inside + (size - 1 - rank) * inside - after) / (size - 1)
        others = [means[c] for c in (cluster - 1, cluster + 1) if 0 <= c < len(means)]
        nearest = np.min([np.abs(inside - mean) for mean in others], axis=0)
        larger = np.maximum(own, nearest)
        total += float(np.sum(np.where(larger > _TIE, (nearest - own) / np.where(larger > _TIE, larger, 1.0), 0.0)))
    return total / len(values)


def _bounds(starts: npt.NDArray[np.int64], clusters: int) -> list[int]:
    """The start of each cluster in the best partition into `clusters`, from the table of last clusters."""
    bounds: list[int] = []
    end = starts.shape[1]
    for last in range(clusters - 1, -1, -1):
        end = int(starts[last, end - 1])
        bounds.insert(0, end)
    return bounds


def _partitions(values: npt.NDArray[np.float64], most: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Exact partitions of sorted values into 1 ... `most` clusters, in O(most * n^2): the least sums of squares [most],
    and the first position of the last cluster for each prefix, [most, n]."""
    n = len(values)
    centred = values - values.mean()  # keeps differences of sums of squares precise
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
            # The last cluster starts at `first`, and the values before it form one cluster less. Later blocks only use
            # earlier ones, so working block by block is exact. Within a block, the results for one cluster less are
            # complete.
            totals = best[clusters - 1, : n - 1, None] + spread[1:]
            starts[clusters, columns] = np.argmin(totals, axis=0) + 1
            best[clusters, columns] = np.min(totals, axis=0)
    return best[:, n - 1], starts


_NONE = np.empty(0, np.int64)


class BoundedPruning(_Pruning):
    """Pruning by calibrated errors. It compares log-odds, since the errors are measured on that scale."""

    def __init__(
        self, k: int, *, mode: Mode = "ranked", errors: Sequence[float], margin: float, candidates: int
    ) -> None:
        """`errors`: standard deviation of predicted from final log-odds after each layer [layers + 1], the first before
        any; infinite where useless. `margin`: deviations of the difference of two errors from the K-th beyond which a
        candidate is hopeless."""
        super().__init__(k, mode, candidates)
        self._everybody = k >= candidates
        self._errors = errors
        self.margin = margin

    def wants(self, layer: int) -> bool:
        """Whether `decide` would use the scores after `layer` layers; if not, they are not computed."""
        return not self._everybody and math.isfinite(self._errors[layer] * self.margin)

    def reach(self, layer: int) -> float:
        """The largest change of the difference of two log-odds after `layer` layers that the margin allows for."""
        return self.margin * math.sqrt(2) * self._errors[layer]

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision:
        """Judges the active candidates. Before the first layer none is selected, so that every result has been read."""
        cv = dispersion(scores)
        if not self.wants(layer) or (self.mode == "ranked" and len(ids) <= self.k):
            return Decision(layer, cv, _NONE, _NONE, _NONE, ids, finished=False)
        odds, reach = log_odds(scores), self.reach(layer)
        # Among equal scores the smaller number comes first, as in the final ranking.
        order = np.lexsort((ids, -odds))
        last = odds[order[min(self.remaining, len(ids)) - 1]]
        below = odds < last - reach
        if self.mode == "ranked" or layer == 0:
            return Decision(layer, cv, _NONE, _NONE, ids[below], ids[~below], finished=False)
        above = np.zeros(len(ids), bool)
        if self.remaining < len(ids):
            above = odds > odds[order[self.remaining]] + reach
        selected = ids[order[above[order]]]
        inside = ~above & ~below
        self.remaining -= len(selected)
        if int(inside.sum()) <= self.remaining:
            selected = np.concatenate((selected, ids[order[inside[order]]]))
            self.remaining = 0
            return Decision(layer, cv, _NONE, selected, ids[below], _NONE, finished=True)
        return Decision(layer, cv, _NONE, selected, ids[below], ids[inside], finished=False)
