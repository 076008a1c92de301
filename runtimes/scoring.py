"""Provisional scores after each layer, and the observer that prunes on them while a pass runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.chunking import Chunk
from edge.models.blending import WEIGHT, Retrieved, prior_logits, retrieved_scores
from edge.models.calibration import Calibration
from edge.models.spec import ModelSpec
from edge.pruning import Decision
from edge.runtimes.heads import lens_input, logits, pool, sigmoid
from edge.runtimes.needs import SCORED_TOGETHER, SCORING_ARRAYS


class Pruning(Protocol):
    """Decides after each layer who goes on: `ProgressivePruning` by clusters, `BoundedPruning` by calibrated errors."""

    def wants(self, layer: int) -> bool: ...

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision: ...


class Scorer:
    """Relevance logits after each layer: from the model's own head, or from the lens where calibration found that it
    sees more."""

    def __init__(
        self, spec: ModelSpec, head: Mapping[str, npt.NDArray[Any]], calibration: Calibration | None = None
    ) -> None:
        self._spec = spec
        self._head = head
        self._calibration = calibration
        self._lens = calibration.lens if calibration is not None else None
        self._lens_layers = frozenset(calibration.lens_layers if calibration is not None else ())

    def read(self, layer: int, states: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The vectors [batch, hidden] that a chunk's sequences are scored by after `layer` layers; arguments as for
        `heads.pool`."""
        return (lens_input if layer in self._lens_layers else pool)(self._spec, states, lengths)

    def __call__(self, layer: int, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Logits [n] of vectors [n, hidden] that `read` gave after `layer` layers: the final ones, or before the last
        layer what calibration predicts of them.

        Raises:
            ModelError: a score is not finite.
        """
        if self._lens is not None and layer in self._lens_layers:
            found = self._lens.logits(layer, vectors)
        else:
            found = logits(self._spec, self._head, vectors)
        if self._calibration is None or layer == self._spec.layers:
            return found
        return self._calibration.slopes[layer - 1] * found + self._calibration.offsets[layer - 1]


class Pool:
    """The candidates' logits so far, and what retrieval adds to them if they came from there.

    The blend (see `models.blending`) is scaled by the spread of a pool's logits. With the calibrated spread a
    candidate's score depends on its own logit and on retrieval alone, so pruning leaves the scores of the others equal.
    Without one the spread is that of this pool, where a candidate that left early counts with its last logit.
    """

    def __init__(
        self, candidates: int, *, retrieved: Retrieved, spread: float | None = None, weight: float = WEIGHT
    ) -> None:
        """Args:
            spread: calibrated standard deviation of the final logits of a pool.
            weight: the model's share of the blend.

        Raises:
            InputError: see `retrieved_scores`.
        """
        found = retrieved_scores(candidates, retrieved)
        self._logits = np.full(candidates, np.nan)
        self._spread = spread
        self._prior = None if found is None else prior_logits(found, weight)

    def see(self, ids: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Takes the logits [n] of some candidates and returns their scores [n] in 0 ... 1, by which they compare."""
        self._logits[ids] = values
        if self._prior is None:
            return sigmoid(values)
        spread = np.nanstd(self._logits) if self._spread is None else self._spread
        return sigmoid(values + spread * self._prior[ids])

    @property
    def separable(self) -> bool:
        """Whether a candidate's score depends on nothing but its own logit and retrieval."""
        return self._prior is None or self._spread is not None

    def part(self, ids: npt.NDArray[np.int64]) -> Pool:
        """A pool of some of these candidates, none of them seen, with what retrieval adds to them here."""
        part = Pool(len(ids), retrieved=False, spread=self._spread)
        part._prior = None if self._prior is None else self._prior[ids]
        return part

    def relevance(self) -> npt.NDArray[np.float64]:
        """The model's own last probability of every candidate [candidates], nan for those never scored."""
        return sigmoid(self._logits)


@dataclass(slots=True)
class LayerReport:
    """One line of `--explain`: who was active after a layer, with which scores, and what was decided.

    Attributes:
        layer: layers run so far.
        ids: candidates that were active [active].
        scores: their provisional scores [active].
        decision: what pruning said.
    """

    layer: int
    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    decision: Decision


@dataclass(slots=True)
class PruningObserver:
    """Scores candidates after each layer that matters, lets `pruning` decide, and keeps the ranking.

    Raises BudgetExceeded if what it holds for so many candidates does not fit `budget`; `close` gives it back.

    Attributes:
        budget: where that is reserved, if anywhere.
        pool: the candidates' logits, blended with what retrieval found.
        scores: last known score of each candidate [n].
        reports: one for each layer whose scores were looked at.
        groups: candidates in the order of their groups' ranks: winners that left early, ... , the last ones standing.
        dropped: those pruned as hopeless, the last to go first.
    """

    spec: ModelSpec
    scorer: Scorer
    pruning: Pruning
    pool: Pool
    candidates: int
    every_layer: bool = False
    budget: MemoryBudget | None = None
    scores: npt.NDArray[np.float64] = field(init=False)
    reports: list[LayerReport] = field(default_factory=list)
    groups: list[npt.NDArray[np.int64]] = field(default_factory=list)
    dropped: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _vectors: npt.NDArray[np.float32] = field(init=False)
    _lease: Lease | None = None
    _layer: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None:
            self._lease = self.budget.reserve("candidates", self._needed())
        self.scores = np.full(self.candidates, np.nan)
        self._vectors = np.empty((self.candidates, self.spec.layer.hidden), np.float32)

    def wants(self, layer: int) -> bool:
        self._layer = layer
        return self._looks(layer)

    def collect(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        self._vectors[chunk.ids] = self.scorer.read(self._layer, states, chunk.lengths)

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not self._looks(layer):
            return active
        parts = [active[start : start + SCORED_TOGETHER] for start in range(0, max(1, len(active)), SCORED_TOGETHER)]
        values = np.concatenate([self.scorer(layer, self._vectors[part]) for part in parts])
        scores = self.pool.see(active, values)
        self.scores[active] = scores
        decision = self.pruning.decide(layer, active, scores)
        self.reports.append(LayerReport(layer, active, scores, decision))
        if len(decision.selected):
            self.groups.append(decision.selected)
        if len(decision.dropped):
            self.dropped.insert(0, self._by_score(decision.dropped))
        if layer == self.spec.layers and len(decision.deferred):
            self.groups.append(self._by_score(decision.deferred))
            return decision.deferred[:0]
        return decision.deferred

    def ranking(self) -> npt.NDArray[np.int64]:
        """All candidates, best first; ties keep the order of the input."""
        return np.concatenate([*self.groups, *self.dropped])

    def close(self) -> None:
        """Gives the vectors' memory back; scores and ranking stay."""
        self._vectors = self._vectors[:0].copy()
        if self._lease is not None:
            self._lease.release()

    def _needed(self) -> int:
        width = self.spec.layer.hidden * 4
        vectors = (self.candidates + SCORING_ARRAYS * min(self.candidates, SCORED_TOGETHER)) * width
        # Scores, logits, what retrieval adds; of each layer that is looked at ids and scores.
        return vectors + self.candidates * 8 * (3 + 2 * self.spec.layers)

    def _looks(self, layer: int) -> bool:
        return self.every_layer or layer == self.spec.layers or self.pruning.wants(layer)

    def _by_score(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ids[np.lexsort((ids, -self.scores[ids]))]
