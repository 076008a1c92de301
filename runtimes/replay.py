"""Pruning replayed on recorded scores, and the margins that keep what full depth finds.

The scores of a sequence do not depend on its pool. So the effect of a margin on a query follows from the scores that
its candidates have after each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from edge.bounded_pruning import BoundedPruning
from edge.models.blending import WEIGHT, Retrieved
from edge.models.calibration import Measured
from edge.pruning import Mode
from edge.runtimes.scoring import Pool

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

MARGINS = tuple(np.arange(0.5, 4.01, 0.25).tolist())
"""Margins that are tried, in standard deviations; the widest is kept where none reaches the target."""

_FOLDS = 4


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one query.

    Attributes:
        scores: predicted final logits of its candidates after each layer [layers, candidates]; the last are the final
            ones.
        relevant: positions of the relevant candidates; None if nobody judged them.
        retrieved: what retrieval found (see `models.blending`).
        domain: where the query comes from.
        weight: the model's share of the blend with retrieval.
    """

    scores: Scores
    relevant: frozenset[int] | None
    retrieved: Retrieved = True
    domain: str = ""
    weight: float = WEIGHT

    def cut(self, count: int) -> Record:
        """Only the first candidates."""
        relevant = None if self.relevant is None else frozenset(i for i in self.relevant if i < count)
        retrieved = self.retrieved if isinstance(self.retrieved, bool) else self.retrieved[:count]
        return Record(self.scores[:, :count], relevant, retrieved, self.domain, self.weight)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pruning did to one query.

    Attributes:
        chosen: the best K candidates, best first.
        evaluations: layer x candidate evaluations that were needed.
    """

    chosen: Ids
    evaluations: int


def replay(
    record: Record, k: int, mode: Mode, margin: float, errors: Sequence[float], spread: float, *, retrieved: bool = True
) -> Outcome:
    """Prunes on recorded scores as a live pass would."""
    layers, n = record.scores.shape
    pool = Pool(n, retrieved=record.retrieved if retrieved else False, spread=spread, weight=record.weight)
    pruning = BoundedPruning(k, mode=mode, errors=errors, margin=margin, candidates=n)
    active = np.arange(n)
    chosen: list[Ids] = []
    evaluations = 0
    for layer in range(1, layers + 1):
        evaluations += len(active)
        if layer < layers and not pruning.wants(layer):
            continue
        scores = pool.see(active, record.scores[layer - 1, active])
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
    records: Sequence[Record], k: int, mode: Mode, margin: float, errors: Sequence[float], spread: float, *,
    candidates: int, retrieved: bool,
) -> Measured:  # fmt: skip
    """Precision@K, overlap with full depth and work, means over the records cut to `candidates`.

    Without judgements the best K of full depth count as relevant. Fewer than K relevant divide by their number, as in
    the paper.
    """
    precisions, full, overlaps, work = [], [], [], []
    for record in (record.cut(candidates) for record in records):
        found = replay(record, k, mode, margin, errors, spread, retrieved=retrieved)
        pool = Pool(
            record.scores.shape[1],
            retrieved=record.retrieved if retrieved else False,
            spread=spread,
            weight=record.weight,
        )
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
    records: Sequence[Record], ks: Iterable[int], pools: Iterable[int], mode: Mode, errors: Sequence[float],
    spread: float, *, orders: Iterable[bool], target: float,
) -> float:  # fmt: skip
    """The smallest margin that keeps the target in every domain (in each of a few parts, where all queries come from
    one): a margin is for queries of domains that nobody has seen.

    Args:
        target: share of full depth's K results that must be found, mean over numbers of results, sizes of pools and
            orders.
    """
    cases = [(k, n, order) for k, n, order in product(ks, pools, orders) if k < n]
    domains = sorted({record.domain for record in records})
    parts = [[r for r in records if r.domain == d] for d in domains]
    if len(parts) == 1:
        parts = [part for part in (list(records[i::_FOLDS]) for i in range(_FOLDS)) if part]
    for margin in MARGINS:
        if all(_kept(part, cases, mode, margin, errors, spread) >= target - 1e-12 for part in parts):
            return float(margin)
    return float(MARGINS[-1])


def _kept(
    part: Sequence[Record], cases: Sequence[tuple[int, int, bool]], mode: Mode, margin: float,
    errors: Sequence[float], spread: float,
) -> float:  # fmt: skip
    rows = [measure(part, k, mode, margin, errors, spread, candidates=n, retrieved=order) for k, n, order in cases]
    return float(np.mean([row.overlap for row in rows])) if rows else 1.0
