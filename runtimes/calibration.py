"""Calibration: measures how far the scores after each layer are from the final ones, and finds the pruning margins that
keep the results of full depth.

Every query is run once at full depth, and margins are replayed on the record: half of the queries fit the lens (a ridge
regression per layer), the others choose between head and lens, and find the margins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.models.blending import WEIGHT, Retrieved, retrieved_scores, share_of, standard
from edge.models.calibration import TARGET, Calibration, Forecast, Lens, Measured
from edge.models.spec import ModelSpec
from edge.runtimes.passes import Job
from edge.runtimes.reranker import Reranker
from edge.runtimes.scoring import CandidatePool, lens_input, logits, pool
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.pruning import BoundedPruning, Mode

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

MARGINS = tuple(np.arange(0.5, 4.01, 0.125).tolist())
"""The margins that are tried, in standard deviations. If none reaches the target, the widest is used."""

_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 1.0)
"""The largest share of results in the pool that a margin is measured for."""

_POOLS = (20, 60)
_MODES: tuple[Mode, ...] = ("ranked", "top-k")
_FOLDS = 4


@dataclass(frozen=True, slots=True)
class RecordedScores:
    """The record of one query: logits after each layer [layers, candidates], positions of the relevant candidates or
    None, and the retrieval scores with the model's share of the blend (`weight`)."""

    scores: Scores
    relevant: frozenset[int] | None
    retrieved: Retrieved = True
    domain: str = ""
    weight: float = WEIGHT

    def cut(self, count: int) -> RecordedScores:
        relevant = None if self.relevant is None else frozenset(i for i in self.relevant if i < count)
        retrieved = self.retrieved if isinstance(self.retrieved, bool) else self.retrieved[:count]
        return RecordedScores(self.scores[:, :count], relevant, retrieved, self.domain, self.weight)


@dataclass(frozen=True, slots=True)
class PruningOutcome:
    """The result of pruning for one query: the best K candidates, best first, and the layer x candidate evaluations."""

    chosen: Ids
    evaluations: int


def replay(
    record: RecordedScores, k: int, mode: Mode, margin: float, calibration: Calibration, *, retrieved: bool = True
) -> PruningOutcome:
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
    return PruningOutcome(np.concatenate(chosen)[:k], evaluations)


def measure(
    records: Sequence[RecordedScores], k: int, mode: Mode, margin: float, calibration: Calibration, *,
    candidates: int, retrieved: bool,
) -> Measured:  # fmt: skip
    """Precision@K, overlap with full depth and work, as means over the records, cut to `candidates`. Without judgements
    the best K of full depth count as relevant. With fewer than K relevant ones precision is divided by their number, as
    in the paper."""
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


def find_margins(
    records: Sequence[RecordedScores], ks: Iterable[int], pools: Iterable[int], mode: Mode, calibration: Calibration, *,
    retrieved: bool, target: float,
) -> tuple[tuple[float, float], ...]:  # fmt: skip
    """Pairs of the share of results in a pool, ascending, and the smallest margin that keeps the target in every
    domain, or in each of a few parts of a single one."""
    cases: dict[float, list[tuple[int, int]]] = {}
    for k, n in product(ks, pools):
        if k < n:
            cases.setdefault(next(share for share in _SHARES if k / n <= share), []).append((k, n))
    domains = sorted({record.domain for record in records})
    parts = [[r for r in records if r.domain == d] for d in domains]
    if len(parts) == 1:
        parts = [part for part in (list(records[i::_FOLDS]) for i in range(_FOLDS)) if part]

    def smallest(of: Sequence[tuple[int, int]]) -> float:
        for margin in MARGINS:
            if all(_kept(part, of, mode, margin, calibration, retrieved) >= target - 1e-12 for part in parts):
                return float(margin)
        return float(MARGINS[-1])

    return tuple((share, smallest(cases[share])) for share in sorted(cases))


def _kept(
    part: Sequence[RecordedScores], cases: Sequence[tuple[int, int]], mode: Mode, margin: float,
    calibration: Calibration, retrieved: bool,
) -> float:  # fmt: skip
    rows = [measure(part, k, mode, margin, calibration, candidates=n, retrieved=retrieved) for k, n in cases]
    return float(np.mean([row.overlap for row in rows]))


def _pool(record: RecordedScores, calibration: Calibration, retrieved: bool) -> CandidatePool:
    count = record.scores.shape[1]
    found = record.retrieved if retrieved else False
    return CandidatePool(count, retrieved=found, calibration=calibration, weight=record.weight)


_LENS_PAIRS = 4096
"""Largest number of pairs used to fit the lens: about ten for each of its weights."""

_RIDGE = 0.01
"""Ridge penalty, as a share of a feature's mean square."""

_BLIND = 0.97
"""For texts in no order, a layer's scores are ignored if their error's deviation exceeds this share of the final
scores'."""


@dataclass(frozen=True, slots=True)
class Example:
    """A calibration query. `docs` should be in a retriever's order, with its scores `retrieved`; without `relevant`
    positions the top K of full depth count. `domain` names the source."""

    query: str
    docs: Sequence[str]
    relevant: frozenset[int] | None = None
    retrieved: Retrieved = True
    domain: str = ""


def calibrate(
    reranker: Reranker,
    examples: Sequence[Example],
    *,
    ks: Sequence[int] = (1, 3, 5, 10, 20),
    target: float = TARGET,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measures a model's operating points; `save` stores the result with the model.

    `examples`: at least 8, better about 100. `target`: share of full depth's K results to be found. `progress` gets
    (queries done, queries in all)."""
    if len(examples) < 8:
        raise InputError(f"calibration needs at least 8 queries, not {len(examples)}")
    if not 0 < target <= 1:
        raise InputError(f"the target lies in (0, 1], not {target}")
    spec = reranker.model.spec
    fitting, judging = examples[::2], examples[1::2]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(examples))

    share = max(1, _LENS_PAIRS // len(fitting))
    samples, finals = [], []
    for example in fitting:
        seen = _forward(reranker, example)
        samples.append(seen.sample(share))
        finals.append(seen.final(share))
        step()
    lens = _fit_lens(reranker, samples, finals)
    judged = []
    for example in judging:
        judged.append(_forward(reranker, example).scores(lens))
        step()
    sighted = _sighted(judged, spec.layers)
    scores: list[Scores] = []
    for head, probed in judged:
        rows = [(probed if layer in sighted else head)[layer - 1] for layer in range(1, spec.layers + 1)]
        scores.append(np.stack(rows))
    records = [
        RecordedScores(rows, example.relevant, example.retrieved, example.domain, share_of(example.query))
        for example, rows in zip(judging, scores, strict=True)
    ]
    found = Calibration(
        fingerprint=reranker.model.fingerprint,
        target=target,
        queries=len(judging),
        candidates=round(float(np.mean([len(example.docs) for example in judging]))),
        lens_layers=sighted,
        alone=forecast(records, retrieved=False),
        blended=forecast(records, retrieved=True),
        spread=float(np.sqrt(np.mean([np.var(rows[-1]) for rows in scores]))),
        points=(),
        lens=lens if sighted else None,
    )
    return _with_margins(found, records, ks)


def _with_margins(calibration: Calibration, records: Sequence[RecordedScores], ks: Sequence[int]) -> Calibration:
    """The calibration with the margins that keep its target on these records, and the measured effect of pruning, for
    candidates in no order and for blended retrieval scores."""
    largest = max(record.scores.shape[1] for record in records)
    sizes = sorted({min(size, largest) for size in _POOLS})
    points: list[Measured] = []
    margins: dict[bool, dict[str, tuple[tuple[float, float], ...]]] = {False: {}, True: {}}
    for mode, order in product(_MODES, (False, True)):
        points_of = find_margins(records, ks, sizes, mode, calibration, retrieved=order, target=calibration.target)
        if points_of:
            margins[order][mode] = points_of
        shares, found = zip(*points_of, strict=True) if points_of else ((), ())
        for k, size in product(ks, sizes):
            if k < size:
                margin = float(np.interp(k / size, shares, found))
                points.append(measure(records, k, mode, margin, calibration, candidates=size, retrieved=order))
    return replace(
        calibration,
        alone=replace(calibration.alone, margins=margins[False]),
        blended=replace(calibration.blended, margins=margins[True]),
        points=tuple(points),
    )


def forecast(records: Sequence[RecordedScores], *, retrieved: bool) -> Forecast:
    """The best linear predictions of final logits within a pool, without margins. Each error is that of the domain
    where it is largest."""
    finals = [record.scores[-1] for record in records]
    goal = _centred(finals)
    spread = float(np.std(goal))
    domains = np.concatenate([np.full(record.scores.shape[1], record.domain) for record in records])
    places = [_places(record) if retrieved else np.zeros(record.scores.shape[1]) for record in records]
    lines: list[tuple[float, float, float, float]] = []
    for layer in range(len(records[0].scores)):  # layer 0: before any layer was run
        seen = [record.scores[layer - 1] if layer else np.zeros_like(record.scores[0]) for record in records]
        known = np.stack((_centred(seen), _centred(places)))
        slope, pull = np.linalg.lstsq(known.T, goal, rcond=None)[0].tolist()
        if slope <= 0:  # this layer's logits order candidates no better than chance
            slope, pull = 0.0, np.linalg.lstsq(known[1:].T, goal, rcond=None)[0].item()
        missed = goal - slope * known[0] - pull * known[1]
        error = max(float(np.std(missed[domains == domain])) for domain in np.unique(domains))
        final, start, place = (float(np.mean(np.concatenate(one))) for one in (finals, seen, places))
        offset = final - slope * start - pull * place
        blind = not retrieved and error >= _BLIND * spread
        lines.append((slope, pull, offset, math.inf if blind else error))
    lines.append((1.0, 0.0, 0.0, 0.0))
    slopes, pulls, offsets, errors = zip(*lines, strict=True)
    return Forecast(slopes, pulls, offsets, errors, {})


def _centred(pools: Sequence[Scores]) -> Scores:
    return np.concatenate([scores - scores.mean() for scores in pools])


def _places(record: RecordedScores) -> Scores:
    found = retrieved_scores(record.scores.shape[1], record.retrieved)
    return np.zeros(record.scores.shape[1]) if found is None else standard(found)


def _sighted(judged: Sequence[tuple[Scores, Scores]], layers: int) -> tuple[int, ...]:
    """The layers after which the lens's order of candidates is closer to full depth's than the head's order is."""
    chosen = []
    for layer in range(1, layers):
        head, lens = (
            float(np.mean([_agreement(scores[which][layer - 1], scores[0][-1]) for scores in judged]))
            for which in (0, 1)
        )
        if lens > head:
            chosen.append(layer)
    return tuple(chosen)


def _agreement(scores: Scores, final: Scores) -> float:
    half = max(1, len(final) // 2)
    best = [set(np.argsort(-values, kind="stable")[:half].tolist()) for values in (scores, final)]
    return len(best[0] & best[1]) / half


@dataclass(slots=True)
class _Recorder:
    """Records the lens's inputs [layers, candidates, hidden] and the head's logits [layers, candidates]."""

    spec: ModelSpec
    tensors: Mapping[str, npt.NDArray[Any]]
    candidates: int
    shown: npt.NDArray[np.float32] = field(init=False)
    head: Scores = field(init=False)
    _layer: int = 0

    def __post_init__(self) -> None:
        self.shown = np.empty((self.spec.layers, self.candidates, self.spec.layer.hidden), np.float32)
        self.head = np.empty((self.spec.layers, self.candidates))

    def wants(self, layer: int) -> bool:
        self._layer = layer
        return True

    def collect(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        self.shown[self._layer - 1, chunk.ids] = lens_input(self.spec, states, chunk.lengths)
        self.head[self._layer - 1, chunk.ids] = logits(
            self.spec, self.tensors, pool(self.spec, self.tensors, states, chunk.lengths)
        )

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return active if layer < self.spec.layers else active[:0]

    def sample(self, count: int) -> npt.NDArray[np.float32]:
        """The lens's vectors of `count` candidates, spread evenly over the pool, for all layers but the last."""
        sampled: npt.NDArray[np.float32] = self.shown[:-1, self._spread(count)].copy()
        return sampled

    def final(self, count: int) -> Scores:
        return np.asarray(self.head[-1, self._spread(count)], np.float64)

    def scores(self, lens: Lens) -> tuple[Scores, Scores]:
        """Logits of every layer, by head and by lens. The last layer's logits are the head's in both arrays."""
        probed = [lens.logits(layer, self.shown[layer - 1]) for layer in range(1, self.spec.layers)]
        return self.head, np.stack([*probed, self.head[-1]])

    def _spread(self, count: int) -> npt.NDArray[np.int64]:
        return np.unique(np.linspace(0, self.candidates - 1, min(count, self.candidates)).astype(np.int64))


def _forward(reranker: Reranker, example: Example) -> _Recorder:
    spec = reranker.model.spec
    nbytes = spec.layers * len(example.docs) * spec.layer.hidden * 4
    with reranker.budget.reserve("calibration", nbytes):
        recorder = _Recorder(spec, reranker.engine.head, len(example.docs))
        reranker.engine.run(Job(example.docs, lambda: recorder, query=example.query))
    return recorder


def _fit_lens(reranker: Reranker, samples: list[npt.NDArray[np.float32]], finals: list[Scores]) -> Lens:
    """Fits the lens with one ridge regression per layer, on standardized features."""
    spec = reranker.model.spec
    hidden = spec.layer.hidden
    with reranker.budget.reserve("calibration", 2 * sum(part.nbytes for part in samples) + 24 * hidden**2):
        vectors = np.concatenate(samples, axis=1)
        samples.clear()
        goal = np.concatenate(finals)
        weight = np.zeros((spec.layers, hidden), np.float32)
        bias = np.full(spec.layers, goal.mean(), np.float32)
        for layer, shown in enumerate(vectors):
            mean = shown.mean(axis=0, dtype=np.float64)
            spread = shown.std(axis=0, dtype=np.float64) + 1e-6
            x = (shown - mean) / spread
            solution = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(hidden), x.T @ (goal - goal.mean())) / spread
            weight[layer] = solution
            bias[layer] -= mean @ solution
    return Lens(weight, bias)
