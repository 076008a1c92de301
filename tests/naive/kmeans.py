"""One-dimensional k-means by trying every contiguous partition; the number of clusters by silhouettes from their
definition: for each value, mean distances to the others of its cluster and to those of the nearest other cluster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

_SAME_COST = 1e-10
_SAME_QUALITY = 1e-7
_SEPARATED = 0.5

Partition = list[list[int]]


def squares(values: Sequence[Fraction]) -> Fraction:
    """Sum of squared distances to the mean, exactly."""
    mean = sum(values) / Fraction(len(values))
    return sum(((value - mean) ** 2 for value in values), Fraction(0))


def optimal(scores: Sequence[float], clusters: int) -> list[Partition]:
    """Partitions of positions, highest cluster first, with the least sum of squares; all of them, where several tie."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    exact = [Fraction(score) for score in scores]
    found: list[tuple[Fraction, Partition]] = []
    for cuts in itertools.combinations(range(1, len(order)), clusters - 1):
        parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
        found.append((sum((squares([exact[i] for i in part]) for part in parts), Fraction(0)), parts))
    least = min(cost for cost, _ in found)
    slack = Fraction(_SAME_COST) * squares(exact)
    return [parts for cost, parts in found if cost <= least + slack]


def silhouette(scores: Sequence[float], parts: Partition) -> float:
    """Mean silhouette; a cluster of one counts 0."""
    total = 0.0
    for part in parts:
        for i in part if len(part) > 1 else []:
            own = sum(abs(scores[i] - scores[j]) for j in part if j != i) / (len(part) - 1)
            others = [sum(abs(scores[i] - scores[j]) for j in p) / len(p) for p in parts if p is not part]
            nearest = min(others)
            total += (nearest - own) / max(nearest, own) if max(nearest, own) > 0 else 0.0
    return total / len(scores)


def acceptable_labels(scores: Sequence[float], max_clusters: int = 8) -> list[list[int]]:
    """Every labelling of `scores`, 0 for the highest cluster, that is the best up to rounding."""
    rivals: list[tuple[float, Partition]] = []
    to_beat = _SEPARATED
    for clusters in range(2, min(max_clusters, len(set(scores))) + 1):
        qualities = [(silhouette(scores, parts), parts) for parts in optimal(scores, clusters)]
        to_beat = max(to_beat, min(quality for quality, _ in qualities))
        rivals += qualities
    answers = [parts for quality, parts in rivals if quality >= to_beat - _SAME_QUALITY]
    if to_beat <= _SEPARATED + _SAME_QUALITY:
        answers.append([list(range(len(scores)))])
    labellings = []
    for parts in answers:
        labels = [0] * len(scores)
        for label, part in enumerate(parts):
            for i in part:
                labels[i] = label
        labellings.append(labels)
    return labellings
