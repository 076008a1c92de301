"""Replays pruning on recorded scores, and finds the margins that keep the results of full depth.

The scores of a sequence do not depend on its pool. So the effect of a margin on a query follows from its candidates'
scores after each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from edge.models.blending import WEIGHT, Retrieved
from edge.models.calibration import Calibration, Measured
from edge.runtimes.scoring import Pool
from edge.streaming.bounded_pruning import BoundedPruning
from edge.streaming.pruning import Mode

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

MARGINS = tuple(np.arange(0.5, 4.01, 0.125).tolist())
"""The margins that are tried, in standard deviations. If none reaches the target, the widest is used."""

_FOLDS = 4


@dataclass(frozen=True, slots=True)
class Record:
    """The recorded scores and judgements of one query.

    Attributes:
        scores: logits of the candidates after each layer [layers, candidates]. The last row holds the final logits.
        relevant: positions of the relevant candidates; None without judgements.
        retrieved: the retrieval scores (see `models.blending`).
        domain: name of the query's source.
        weight: the model's share of the blend with retrieval.
    """

    scores: Scores
    relevant: frozenset[int] | None
    retrieved: Retrieved = True
    domain: str = ""
    weight: float = WEIGHT

    def cut(self, count: int) -> Record:
        """A record of the first `count` candidates only."""
        relevant = None if self.relevant is None else frozenset(i for i in self.relevant if i < count)
        retrieved = self.retrieved if isinstance(self.retrieved, bool) else self.retrieved[:count]
        return Record(self.scores[:, :count], relevant, retrieved, self.domain, self.weight)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of pruning for one query.

    Attributes:
        chosen: the best K candidates, best first.
        evaluations: number of layer x candidate evaluations.
    """

    chosen: Ids
    evaluations: int


def replay(
    record: Record, k: int, mode: Mode, margin: float, calibration: Calibration, *, retrieved: bool = True
) -> Outcome:
    """Prunes on recorded scores as a live pass does, with the given margin."""
    layers, n = record.scores.shape
    pool = _pool(record, calibration, retrieved)
    assert pool.forecast is not None
    pruning = BoundedPruning(k, mode=mode, errors=pool.forecast.errors, margin=margin, candidates=n)
    active = np.arange(n)
    chosen: list[Ids] = []
    evaluations = 0
    if pruning.wants(0):
        active = pruning.decide(0, active, pool.see(active, np.zeros(n), 0)).deferred
    for layer in range(1, layers + 1):
        evaluations += len(active)
        if layer < layers and not pruning.wants(layer):
            continue
        scores = pool.see(active, record.scores[layer - 1, active], layer)
        if layer == layers:
            chosen.append(active[np.lexsort((active, -scores))])
            break
        decision = pruning.decide(layer, active, scores)
        chosen.append(decision.selected)
        active = decision.deferred
        if len(active) == 0:
            break
    return Outcome(np.concatenate(chosen)[:k], evaluations)


def measure(
    records: Sequence[Record], k: int, mode: Mode, margin: float, calibration: Calibration, *,
    candidates: int, retrieved: bool,
) -> Measured:  # fmt: skip
    """Precision@K, overlap with full depth and work, as means over the records, which are cut to `candidates`.

    Without judgements the best K of full depth count as relevant. If there are fewer than K relevant candidates,
    precision is divided by their number, as in the paper.
    """
    precisions, full, overlaps, work = [], [], [], []
    for record in (record.cut(candidates) for record in records):
        found = replay(record, k, mode, margin, calibration, retrieved=retrieved)
        pool = _pool(record, calibration, retrieved)
        ids = np.arange(record.scores.shape[1])
        best = set(np.lexsort((ids, -pool.see(ids, record.scores[-1])))[:k].tolist())
        relevant = best if record.relevant is None else record.relevant
        chosen = set(found.chosen.tolist())
        overlaps.append(len(best & chosen) / max(1, len(best)))
        work.append(found.evaluations / record.scores.size)
        if relevant:
            precisions.append(len(relevant & chosen) / min(k, len(relevant)))
            full.append(len(relevant & best) / min(k, len(relevant)))
    mean = [float(np.mean(values)) if values else 0.0 for values in (precisions, full, overlaps, work)]
    return Measured(k, candidates, mode, retrieved, *mean)


def find_margin(
    records: Sequence[Record], ks: Iterable[int], pools: Iterable[int], mode: Mode, calibration: Calibration, *,
    retrieved: bool, target: float,
) -> float:  # fmt: skip
    """The smallest margin that keeps the target in every domain, because it will be used in new domains. If all queries
    come from one domain, they are divided into a few parts, and the target must be kept in each part.

    Args:
        retrieved: whether the scores of retrieval are blended in.
        target: share of full depth's K results that must be found, mean over numbers of results and sizes of pools.
    """
    cases = [(k, n) for k, n in product(ks, pools) if k < n]
    domains = sorted({record.domain for record in records})
    parts = [[r for r in records if r.domain == d] for d in domains]
    if len(parts) == 1:
        parts = [part for part in (list(records[i::_FOLDS]) for i in range(_FOLDS)) if part]
    for margin in MARGINS:
        if all(_kept(part, cases, mode, margin, calibration, retrieved) >= target - 1e-12 for part in parts):
            return float(margin)
    return float(MARGINS[-1])


def _kept(
    part: Sequence[Record], cases: Sequence[tuple[int, int]], mode: Mode, margin: float, calibration: Calibration,
    retrieved: bool,
) -> float:  # fmt: skip
    rows = [measure(part, k, mode, margin, calibration, candidates=n, retrieved=retrieved) for k, n in cases]
    return float(np.mean([row.overlap for row in rows])) if rows else 1.0


def _pool(record: Record, calibration: Calibration, retrieved: bool) -> Pool:
    count = record.scores.shape[1]
    found = record.retrieved if retrieved else False
    return Pool(count, retrieved=found, calibration=calibration, weight=record.weight)
