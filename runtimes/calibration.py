"""Calibration: how far the scores after each layer are from the final ones, and which margin of pruning keeps the
results of full depth.

The scores of a sequence do not depend on its pool. So every query is forwarded once at full depth, its scores are
recorded after each layer, and any margin can then be replayed on the record. Half of the queries fit the lens (a ridge
regression per layer to the final logit). The other half choose between head and lens after each layer, give the
deviation of each layer's scores from the final ones, and find the smallest margin that keeps the target for every
number of results out of every size of pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.chunking import Chunk
from edge.errors import InputError
from edge.models.blending import Retrieved, share_of
from edge.models.calibration import Calibration, Lens, Measured
from edge.models.spec import ModelSpec
from edge.pruning import Mode
from edge.runtimes.heads import lens_input, logits, pool
from edge.runtimes.replay import Record, Scores, find_margin, measure
from edge.runtimes.reranker import Reranker

_LENS_PAIRS = 4096
"""Pairs that fit the lens, at most: ten for each of its weights, where there are so many."""

_RIDGE = 0.01
"""Of a feature's mean square."""

_BLIND = 0.97
"""Scores that miss the final ones by more than this share of their deviation are not looked at."""


@dataclass(frozen=True, slots=True)
class Example:
    """A calibration query.

    Attributes:
        query: what is asked.
        docs: its candidates; best in a retriever's order, so that reranking what was retrieved is calibrated too.
        relevant: positions of the relevant ones; without judgements, full depth's own top K counts as relevant.
        retrieved: what the retriever says of them (see `models.blending`).
        domain: where the query comes from: what holds in one domain must hold in the others (see `replay.operating`).
    """

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
    pools: Sequence[int] = (20, 60),
    modes: Iterable[Mode] = ("ranked", "top-k"),
    orders: Sequence[bool] = (False, True),
    target: float = 0.995,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measures a model's operating points.

    Args:
        reranker: open; its own thresholds play no part.
        examples: at least 8 queries, best some 100, of the kind the model will meet.
        ks: numbers of results.
        pools: sizes of pools; larger ones are cut to them.
        modes: modes of pruning.
        orders: False for candidates in no order, True for candidates with whose retrieval the model is blended.
        target: share of full depth's K results that must be found, in (0, 1]; see `replay.find_margin`.
        progress: called with (queries done, queries in all).

    Returns:
        The calibration; `save` stores it with the model.

    Raises:
        InputError: too few examples, or a target outside (0, 1].
    """
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
    slopes, offsets, errors = _errors(scores)
    spread = float(np.sqrt(np.mean([np.var(rows[-1]) for rows in scores])))
    records = []
    for example, rows_seen in zip(judging, scores, strict=True):
        predicted = rows_seen * np.array(slopes)[:, None] + np.array(offsets)[:, None]
        weight = share_of(example.query)
        records.append(Record(predicted, example.relevant, example.retrieved, example.domain, weight))
    largest = max(len(example.docs) for example in judging)
    sizes = sorted({min(size, largest) for size in pools})
    margins: dict[str, float] = {}
    points: list[Measured] = []
    for mode in modes:
        margin = find_margin(records, ks, sizes, mode, errors, spread, orders=orders, target=target)
        margins[mode] = margin
        for k, size, order in product(ks, sizes, orders):
            if k < size:
                points.append(measure(records, k, mode, margin, errors, spread, candidates=size, retrieved=order))
    return Calibration(
        fingerprint=reranker.model.fingerprint,
        target=target,
        queries=len(judging),
        candidates=round(float(np.mean([len(example.docs) for example in judging]))),
        lens_layers=sighted,
        slopes=slopes,
        offsets=offsets,
        errors=errors,
        spread=spread,
        margins=margins,
        points=tuple(points),
        lens=lens if sighted else None,
    )


def _errors(scores: Sequence[Scores]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Slope and offset of the line from each layer's logits to the final ones, and the deviation from it within a
    pool."""
    slopes, offsets, errors = [], [], []
    final = np.concatenate([rows[-1] for rows in scores])
    goal = np.concatenate([rows[-1] - rows[-1].mean() for rows in scores])
    for layer in range(len(scores[0])):
        seen = np.concatenate([rows[layer] - rows[layer].mean() for rows in scores])
        square = float(seen @ seen)
        slope = float(seen @ goal) / square if square > 0 else 0.0
        error = float(np.std(goal - slope * seen))
        slopes.append(slope)
        offsets.append(float(final.mean() - slope * np.mean(np.concatenate([rows[layer] for rows in scores]))))
        errors.append(error if slope > 0 and error < _BLIND * float(np.std(goal)) else math.inf)
    slopes[-1], offsets[-1], errors[-1] = 1.0, 0.0, 0.0
    return tuple(slopes), tuple(offsets), tuple(errors)


def _sighted(judged: Sequence[tuple[Scores, Scores]], layers: int) -> tuple[int, ...]:
    """Layers after which the lens orders candidates more like full depth than the head does."""
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
    """Share of the better half in the end that is in the better half already."""
    half = max(1, len(final) // 2)
    best = [set(np.argsort(-values, kind="stable")[:half].tolist()) for values in (scores, final)]
    return len(best[0] & best[1]) / half


@dataclass(slots=True)
class _Recorder:
    """Keeps what head and lens would read after every layer.

    Attributes:
        shown: the lens's vectors, [layers, candidates, hidden].
        head: the head's logits, [layers, candidates].
    """

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

    def collect(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        self.shown[self._layer - 1, chunk.ids] = lens_input(self.spec, states, chunk.lengths)
        self.head[self._layer - 1, chunk.ids] = logits(self.spec, self.tensors, pool(self.spec, states, chunk.lengths))

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return active if layer < self.spec.layers else active[:0]

    def sample(self, count: int) -> npt.NDArray[np.float32]:
        """The lens's vectors of `count` candidates spread evenly over the pool, before the last layer."""
        sampled: npt.NDArray[np.float32] = self.shown[:-1, self._spread(count)].copy()
        return sampled

    def final(self, count: int) -> Scores:
        """The final logits of the same candidates."""
        return np.asarray(self.head[-1, self._spread(count)], np.float64)

    def scores(self, lens: Lens) -> tuple[Scores, Scores]:
        """Logits of every layer by head and by lens; the last layer's are the head's in both."""
        probed = [lens.logits(layer, self.shown[layer - 1]) for layer in range(1, self.spec.layers)]
        return self.head, np.stack([*probed, self.head[-1]])

    def _spread(self, count: int) -> npt.NDArray[np.int64]:
        return np.unique(np.linspace(0, self.candidates - 1, min(count, self.candidates)).astype(np.int64))


def _forward(reranker: Reranker, example: Example) -> _Recorder:
    batch = reranker.tokenize(example.query, example.docs)
    spec = reranker.model.spec
    nbytes = spec.layers * len(example.docs) * spec.layer.hidden * 4
    with reranker.budget.reserve("calibration", nbytes):
        recorder = _Recorder(spec, reranker.engine.head, len(example.docs))
        reranker.engine.run(batch, recorder)
    return recorder


def _fit_lens(reranker: Reranker, samples: list[npt.NDArray[np.float32]], finals: list[Scores]) -> Lens:
    """Ridge regression per layer on standardised features."""
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
