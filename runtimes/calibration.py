"""Calibration: where pruning may start so that Precision@K stays what full depth gives (GRATING, section 4.1).

A sequence's scores do not depend on its pool, so every query is forwarded once at full depth with its scores recorded
after each layer, and any threshold can then be replayed on the record. Half of the queries fit the lens (a ridge
regression per layer from the head's input to the final logit), the other half choose between head and lens and find,
for each number of results, the lowest threshold that keeps the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from edge.chunking import Chunk
from edge.errors import InputError
from edge.models.calibration import Calibration, Lens, Operating
from edge.models.spec import ModelSpec
from edge.pruning import Mode, ProgressivePruning, dispersion
from edge.runtimes.heads import logits, pool
from edge.runtimes.reranker import Reranker
from edge.runtimes.scoring import Pool

_LENS_PAIRS = 512
"""Pairs that fit the lens; ridge regression needs a few hundred."""

_RIDGE = 1.0
_STEPS = 12
"""Thresholds tried by bisection over the dispersions that occur."""

ScorerName = Literal["head", "lens"]


@dataclass(frozen=True, slots=True)
class Example:
    """A calibration query.

    Attributes:
        query: what is asked.
        docs: its candidates; best in a retriever's order, so that reranking what was retrieved is calibrated too.
        relevant: positions of the relevant ones; without judgements, full depth's own top K counts as relevant.
    """

    query: str
    docs: Sequence[str]
    relevant: frozenset[int] | None = None


@dataclass(slots=True)
class _Record:
    """Logits of one query's candidates after each layer, [layers, candidates], by scorer."""

    scores: dict[ScorerName, npt.NDArray[np.float64]]
    relevant: frozenset[int] | None


def calibrate(
    reranker: Reranker,
    examples: Sequence[Example],
    *,
    ks: Iterable[int] = (1, 5, 10),
    modes: Iterable[Mode] = ("ranked", "top-k"),
    orders: Iterable[bool] = (False, True),
    target: float = 0.995,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measures a model's operating points.

    Args:
        reranker: open; its own thresholds play no part.
        examples: at least 8 queries, best some 100, of the kind the model will meet.
        ks: numbers of results.
        modes: modes of pruning.
        orders: False for candidates in no order, True for candidates whose retrieval order is blended in.
        target: share of full depth's Precision@K that must be kept, in (0, 1].
        progress: called with (queries done, queries in all).

    Returns:
        The calibration; `save` stores it with the model.

    Raises:
        InputError: too few examples, or a target outside (0, 1].
    """
    if len(examples) < 8:
        raise InputError(f"calibration needs at least 8 queries, not {len(examples)}")
    if not 0 < target <= 1:
        raise InputError(f"the precision target lies in (0, 1], not {target}")
    spec = reranker.model.spec
    fitting, judging = examples[::2], examples[1::2]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(examples))

    share = max(1, _LENS_PAIRS // len(fitting))
    samples = []
    for example in fitting:
        samples.append(_forward(reranker, example).sample(share))
        step()
    lens = _fit_lens(reranker, samples)
    records = []
    for example in judging:
        records.append(_forward(reranker, example).record(reranker, lens, example.relevant))
        step()

    choices: dict[ScorerName, list[Operating]] = {}
    for scorer in cast(tuple[ScorerName, ...], ("head", "lens")):
        choices[scorer] = [
            _operating(records, scorer, k, mode, retrieved, target, spec.layers)
            for retrieved in orders
            for mode in modes
            for k in ks
        ]
    best = min(choices, key=lambda name: float(np.mean([point.evaluations for point in choices[name]])))
    points = tuple(point for point in choices[best] if math.isfinite(point.threshold))
    return Calibration(
        fingerprint=reranker.model.fingerprint,
        target=target,
        queries=len(judging),
        candidates=round(float(np.mean([len(example.docs) for example in judging]))),
        scorer=best,
        points=points,
        lens=lens if best == "lens" else None,
    )


def replay(
    recorded: npt.NDArray[np.float64], k: int, mode: Mode, threshold: float, first_layer: int, *, retrieved: bool
) -> tuple[npt.NDArray[np.int64], int]:
    """Prunes on recorded logits [layers, candidates] as a live pass would.

    Returns:
        The chosen candidates, best first, and the layer x candidate evaluations that were needed.
    """
    layers, n = recorded.shape
    pool = Pool(n, retrieved=retrieved)
    pruning = ProgressivePruning(k, mode=mode, threshold=threshold, first_layer=first_layer, candidates=n)
    active = np.arange(n)
    chosen: list[npt.NDArray[np.int64]] = []
    evaluations = 0
    for layer in range(1, layers + 1):
        evaluations += len(active)
        if not pruning.wants(layer) and layer < layers:
            continue
        scores = pool.see(active, recorded[layer - 1, active])
        decision = pruning.decide(layer, active, scores)
        chosen.append(decision.selected)
        if layer == layers:
            last = np.isin(active, decision.deferred)
            chosen.append(active[last][np.lexsort((active[last], -scores[last]))])
        active = decision.deferred
        if len(active) == 0:
            break
    return np.concatenate(chosen)[:k], evaluations


def _operating(
    records: list[_Record], scorer: ScorerName, k: int, mode: Mode, retrieved: bool, target: float, layers: int
) -> Operating:
    """The cheapest point that keeps the target: for each first layer the lowest threshold, then the best of those."""
    full = _precision(records, scorer, k, mode, math.inf, layers, retrieved)[0]
    best = Operating(k, mode, retrieved, math.inf, layers, full, full, 1.0)
    for first in range(layers - 1, 0, -1):
        seen = _dispersions(records, scorer, first, retrieved)
        low, high = 0, len(seen) - 1
        for _ in range(_STEPS):
            if low > high:
                break
            middle = (low + high) // 2
            threshold = float(np.nextafter(seen[middle], -np.inf))
            precision, evaluations = _precision(records, scorer, k, mode, threshold, first, retrieved)
            if precision >= target * full:
                if evaluations < best.evaluations:
                    best = Operating(k, mode, retrieved, max(0.0, threshold), first, precision, full, evaluations)
                high = middle - 1
            else:
                low = middle + 1
    return best


def _dispersions(records: list[_Record], scorer: ScorerName, first: int, retrieved: bool) -> npt.NDArray[np.float64]:
    """The dispersions that whole pools show from layer `first` on, ascending: the thresholds worth trying."""
    seen = []
    for record in records:
        recorded = record.scores[scorer][first - 1 :]
        ids = np.arange(recorded.shape[1])
        pool = Pool(len(ids), retrieved=retrieved)
        seen += [dispersion(pool.see(ids, values)) for values in recorded]
    return np.sort(seen)


def _precision(
    records: list[_Record],
    scorer: ScorerName,
    k: int,
    mode: Mode,
    threshold: float,
    first: int,
    retrieved: bool,
) -> tuple[float, float]:
    """Mean Precision@K and share of evaluations on the record. With fewer than K relevant, their number divides, as in
    the paper."""
    precisions, shares = [], []
    for record in records:
        scores = record.scores[scorer]
        chosen, evaluations = replay(scores, k, mode, threshold, first, retrieved=retrieved)
        relevant = record.relevant
        if relevant is None:
            relevant = frozenset(replay(scores, k, mode, math.inf, first, retrieved=retrieved)[0].tolist())
        if relevant:
            precisions.append(len(relevant.intersection(chosen.tolist())) / min(k, len(relevant)))
        shares.append(evaluations / scores.size)
    return float(np.mean(precisions)) if precisions else 1.0, float(np.mean(shares))


@dataclass(slots=True)
class _Recorder:
    """Keeps the vectors that the head would read after every layer: [layers, candidates, hidden]."""

    spec: ModelSpec
    candidates: int
    vectors: npt.NDArray[np.float32] = field(init=False)
    _layer: int = 0

    def __post_init__(self) -> None:
        self.vectors = np.empty((self.spec.layers, self.candidates, self.spec.layer.hidden), np.float32)

    def wants(self, layer: int) -> bool:
        self._layer = layer
        return True

    def collect(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        self.vectors[self._layer - 1, chunk.ids] = pool(self.spec, states, chunk.lengths)

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return active if layer < self.spec.layers else active[:0]

    def sample(self, count: int) -> npt.NDArray[np.float32]:
        """The vectors of `count` candidates spread evenly over the pool."""
        chosen = np.unique(np.linspace(0, self.candidates - 1, min(count, self.candidates)).astype(np.int64))
        sampled: npt.NDArray[np.float32] = self.vectors[:, chosen].copy()
        return sampled

    def record(self, reranker: Reranker, lens: Lens, relevant: frozenset[int] | None) -> _Record:
        """Logits of every layer by both scorers; the last layer's are the head's in both."""
        head = np.stack([logits(self.spec, reranker.engine.head, vectors) for vectors in self.vectors])
        probed = [lens.logits(layer, self.vectors[layer - 1]) for layer in range(1, self.spec.layers)]
        return _Record({"head": head, "lens": np.stack([*probed, head[-1]])}, relevant)


def _forward(reranker: Reranker, example: Example) -> _Recorder:
    batch = reranker.tokenize(example.query, example.docs)
    spec = reranker.model.spec
    nbytes = spec.layers * len(example.docs) * spec.layer.hidden * 4
    with reranker.budget.reserve("calibration", nbytes):
        recorder = _Recorder(spec, len(example.docs))
        reranker.engine.run(batch, recorder)
    return recorder


def _fit_lens(reranker: Reranker, samples: list[npt.NDArray[np.float32]]) -> Lens:
    """Ridge regression per layer, centred, in the form whose matrix is pairs x pairs."""
    spec = reranker.model.spec
    with reranker.budget.reserve("calibration", 2 * sum(part.nbytes for part in samples)):
        vectors = np.concatenate(samples, axis=1)
        goal = logits(spec, reranker.engine.head, vectors[-1])
        weight = np.zeros((spec.layers, spec.layer.hidden), np.float32)
        bias = np.zeros(spec.layers, np.float32)
        for layer in range(spec.layers):
            mean = vectors[layer].mean(axis=0, dtype=np.float64)
            x, y = vectors[layer] - mean, goal - goal.mean()
            scale = _RIDGE * float(np.mean(np.square(x))) * len(x) or 1.0
            dual = np.linalg.solve(x @ x.T + scale * np.eye(len(x)), y)
            solution = x.T @ dual
            weight[layer] = solution
            bias[layer] = goal.mean() - mean @ solution
    return Lens(weight, bias)
