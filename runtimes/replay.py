"""Pruning replayed on recorded scores, at every threshold at once.

A sequence's scores do not depend on its pool, so what pruning does to a query follows from its scores after each layer.
A threshold matters only by which dispersions exceed it: a query has a few courses, each over an interval of thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge.models.blending import Retrieved
from edge.models.calibration import Operating
from edge.pruning import Mode, ProgressivePruning, cluster_scores
from edge.runtimes.scoring import Pool

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(slots=True)
class Record:
    """What is known of one query.

    Attributes:
        scores: logits of its candidates after each layer [layers, candidates].
        relevant: positions of the relevant candidates; None if nobody judged them.
        retrieved: what retrieval found (see `models.blending`).
        clusters: partitions found so far: courses share most of them.
    """

    scores: Scores
    relevant: frozenset[int] | None
    retrieved: Retrieved = True
    clusters: dict[bytes, Ids] = field(default_factory=dict)

    def cluster(self, scores: Scores) -> Ids:
        """As `cluster_scores`, looked up where it was asked before."""
        key = scores.tobytes()
        if key not in self.clusters:
            self.clusters[key] = cluster_scores(scores)
        return self.clusters[key]


@dataclass(frozen=True, slots=True)
class Course:
    """What pruning does to one query at any threshold from `low` up to, and without, `high`.

    Attributes:
        chosen: the best K candidates, best first.
        evaluations: layer x candidate evaluations that were needed.
    """

    low: float
    high: float
    chosen: Ids
    evaluations: int


def replay(record: Record, k: int, mode: Mode, threshold: float, first_layer: int, retrieved: Retrieved) -> Course:
    """Prunes on recorded logits as a live pass would."""
    layers, n = record.scores.shape
    pool = Pool(n, retrieved=retrieved)
    pruning = ProgressivePruning(
        k, mode=mode, threshold=threshold, first_layer=first_layer, candidates=n, cluster=record.cluster
    )
    active = np.arange(n)
    chosen: list[Ids] = []
    low, high, evaluations = 0.0, math.inf, 0  # thresholds that decide alike
    for layer in range(1, layers + 1):
        evaluations += len(active)
        if not pruning.wants(layer) and layer < layers:
            continue
        scores = pool.see(active, record.scores[layer - 1, active])
        decision = pruning.decide(layer, active, scores)
        if layer >= first_layer:
            if decision.cv > threshold:
                high = min(high, decision.cv)
            else:
                low = max(low, decision.cv)
        chosen.append(decision.selected)
        if layer == layers:
            last = np.isin(active, decision.deferred)
            chosen.append(active[last][np.lexsort((active[last], -scores[last]))])
        active = decision.deferred
        if len(active) == 0:
            break
    return Course(low, high, np.concatenate(chosen)[:k], evaluations)


def courses(record: Record, k: int, mode: Mode, first_layer: int, retrieved: Retrieved) -> Iterator[Course]:
    """All courses of a query, from threshold 0 up; the last is full depth."""
    threshold = 0.0
    while threshold < math.inf:
        course = replay(record, k, mode, threshold, first_layer, retrieved)
        yield course
        threshold = course.high


def operating(
    records: Sequence[Record], ks: Sequence[int], mode: Mode, *, retrieved: bool, target: float
) -> list[Operating]:
    """For each number of results the point with the fewest evaluations that keeps the target; none where that is
    full depth.

    Args:
        target: share of full depth's mean Precision@K.
    """
    layers = records[0].scores.shape[0]
    found = []
    for k in ks:
        best: Operating | None = None
        for first in range(1, layers):
            point = _cheapest(records, k, mode, first, retrieved, target)
            if point is not None and (best is None or point.evaluations < best.evaluations):
                best = point
        if best is not None:
            found.append(best)
    return found


def _cheapest(
    records: Sequence[Record], k: int, mode: Mode, first: int, retrieved: bool, target: float
) -> Operating | None:
    """Adds up the queries' step functions over all thresholds and takes the cheapest threshold that keeps the target.
    With fewer than K relevant, their number divides the precision, as in the paper."""
    steps: list[tuple[float, float, float]] = []  # threshold, change of precision, change of evaluations
    full, judged = 0.0, 0
    for record in records:
        found = list(courses(record, k, mode, first, record.retrieved if retrieved else False))
        relevant = frozenset(found[-1].chosen.tolist()) if record.relevant is None else record.relevant
        judged += bool(relevant)
        before = (0.0, 0.0)
        for course in found:
            hits = len(relevant.intersection(course.chosen.tolist())) / min(k, len(relevant)) if relevant else 0.0
            now = (hits, course.evaluations / record.scores.size)
            steps.append((course.low, now[0] - before[0], now[1] - before[1]))
            before = now
        full += before[0]
    judged = max(1, judged)
    steps.sort()
    thresholds = np.array([step[0] for step in steps])
    precision = np.cumsum([step[1] for step in steps]) / judged
    evaluations = np.cumsum([step[2] for step in steps]) / len(records)
    # Only after the last step of equal thresholds do the sums mean anything.
    ends = np.append(thresholds[1:] != thresholds[:-1], True)
    good = ends & (precision >= target * full / judged - 1e-12) & (evaluations < 1 - 1e-9)
    if not good.any():
        return None
    at = int(np.flatnonzero(good)[np.argmin(evaluations[good])])
    middle = float(thresholds[at : at + 2].mean())  # nothing changes up to the next step
    return Operating(k, mode, retrieved, middle, first, float(precision[at]), full / judged, float(evaluations[at]))
