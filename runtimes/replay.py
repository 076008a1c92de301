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

_FOLDS = 4


@dataclass(slots=True)
class Record:
    """What is known of one query.

    Attributes:
        scores: logits of its candidates after each layer [layers, candidates].
        relevant: positions of the relevant candidates; None if nobody judged them.
        retrieved: what retrieval found (see `models.blending`).
        domain: where the query comes from.
        clusters: partitions found so far: courses share most of them.
    """

    scores: Scores
    relevant: frozenset[int] | None
    retrieved: Retrieved = True
    domain: str = ""
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

    A point counts only if its first layer also keeps the target, on average over domains, on queries of domains that
    its threshold was not chosen on; over folds where all queries come from one domain.

    Args:
        target: share of full depth's mean Precision@K.
    """
    layers = records[0].scores.shape[0]
    found = []
    for k in ks:
        best: Operating | None = None
        for first in range(1, layers):
            outcomes = [_outcome(record, k, mode, first, retrieved) for record in records]
            point = _cheapest(outcomes, target)
            if point is None or (best is not None and point.evaluations >= best.evaluations):
                continue
            if _change(outcomes, _parts(records), target) >= (target - 1) * point.full - 1e-12:
                best = Operating(
                    k, mode, retrieved, point.threshold, first, point.precision, point.full, point.evaluations
                )
        if best is not None:
            found.append(best)
    return found


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A query's precision and evaluations as step functions of the threshold.

    Attributes:
        low: thresholds from which each step holds, ascending [n], the first is 0.
        precision: with fewer than K relevant their number divides it, as in the paper [n]; the last is full depth's.
        evaluations: share of full depth's [n].
        judged: it has relevant candidates.
    """

    low: Scores
    precision: Scores
    evaluations: Scores
    judged: bool

    def at(self, threshold: float) -> float:
        """Precision at a threshold."""
        return float(self.precision[np.searchsorted(self.low, threshold, side="right") - 1])


@dataclass(frozen=True, slots=True)
class _Point:
    threshold: float
    precision: float
    full: float
    evaluations: float


def _outcome(record: Record, k: int, mode: Mode, first: int, retrieved: bool) -> _Outcome:
    found = list(courses(record, k, mode, first, record.retrieved if retrieved else False))
    relevant = frozenset(found[-1].chosen.tolist()) if record.relevant is None else record.relevant
    hits = [len(relevant.intersection(course.chosen.tolist())) / max(1, min(k, len(relevant))) for course in found]
    return _Outcome(
        np.array([course.low for course in found]),
        np.array(hits),
        np.array([course.evaluations / record.scores.size for course in found]),
        bool(relevant),
    )


def _parts(records: Sequence[Record]) -> list[Ids]:
    """Numbers of the records of each domain; of each of a few folds if there is one domain only."""
    domains = sorted({record.domain for record in records})
    if len(domains) > 1:
        return [np.flatnonzero([record.domain == domain for record in records]) for domain in domains]
    return np.array_split(np.arange(len(records)), _FOLDS)


def _change(outcomes: Sequence[_Outcome], parts: Sequence[Ids], target: float) -> float:
    """Mean over parts of what precision loses where the threshold is chosen on the other parts; at most 0: what one
    part wins does not pay for another."""
    changes = []
    for part in parts:
        inside = [outcomes[number] for number in part.tolist()]
        chosen = set(part.tolist())
        others = [outcome for number, outcome in enumerate(outcomes) if number not in chosen]
        point = _cheapest(others, target) if others else None
        threshold = math.inf if point is None else point.threshold
        judged = max(1, sum(outcome.judged for outcome in inside))
        changes.append(min(0.0, sum(outcome.at(threshold) - outcome.at(math.inf) for outcome in inside) / judged))
    return float(np.mean(changes))


def _cheapest(outcomes: Sequence[_Outcome], target: float) -> _Point | None:
    """Adds up the queries' step functions over all thresholds and takes the cheapest threshold that keeps the target;
    None if that is full depth."""
    judged = max(1, sum(outcome.judged for outcome in outcomes))
    full = sum(float(outcome.precision[-1]) for outcome in outcomes) / judged
    thresholds = np.concatenate([outcome.low for outcome in outcomes])
    order = np.argsort(thresholds, kind="stable")
    thresholds = thresholds[order]
    changes = [
        np.concatenate([np.diff(steps, prepend=0.0) for steps in all_steps])[order]
        for all_steps in ([o.precision for o in outcomes], [o.evaluations for o in outcomes])
    ]
    precision, evaluations = np.cumsum(changes[0]) / judged, np.cumsum(changes[1]) / len(outcomes)
    # Only after the last step of equal thresholds do the sums mean anything.
    ends = np.append(thresholds[1:] != thresholds[:-1], True)
    good = ends & (precision >= target * full - 1e-12) & (evaluations < 1 - 1e-9)
    if not good.any():
        return None
    at = int(np.flatnonzero(good)[np.argmin(evaluations[good])])
    middle = float(thresholds[at : at + 2].mean())  # nothing changes up to the next step
    return _Point(middle, float(precision[at]), full, float(evaluations[at]))
