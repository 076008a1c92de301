"""Scores and vectors from hidden states, computed in numpy; the observer that prunes by provisional scores; and
`SeenPairs`, the logits of pairs that need not be computed again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.errors import CapabilityError, ModelError
from edge.models.blending import WEIGHT, Retrieved, prior_logits, retrieved_scores, sharpness, standard
from edge.models.calibration import Calibration, Forecast
from edge.models.spec import HeadActivation, ModelSpec
from edge.runtimes.base import StatesElsewhere
from edge.runtimes.native.library import compiled, mean_rows
from edge.runtimes.needs import SCORED_TOGETHER, SCORING_ARRAYS
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.pruning import Decision

_KEY_NBYTES = 16
_MOST = 512


class SeenPairs:
    """The latest `most` pairs of one model. Thread-safe. An engine's headroom covers their 0.2 KB each."""

    def __init__(self, layers: int, most: int = _MOST) -> None:
        self._logits = np.full((most, layers + 1), np.nan)
        self._rows: dict[bytes, int] = {}
        self._owners = [b""] * most
        self._next = 0
        self._lock = threading.Lock()

    def keys(self, query: str, texts: Sequence[str]) -> list[bytes]:
        begun = blake2b(f"{len(query)} {query}".encode(), digest_size=_KEY_NBYTES)
        keys = []
        for text in texts:
            pair = begun.copy()
            pair.update(text.encode())
            keys.append(pair.digest())
        return keys

    def read(self, keys: Sequence[bytes]) -> npt.NDArray[np.float64]:
        """The logits after each layer [n, layers + 1]; nan where they are unknown."""
        with self._lock:
            rows = [self._rows.get(key, -1) for key in keys]
            found = self._logits[rows]
        found[np.array(rows) < 0] = np.nan
        return found

    def note(self, keys: Sequence[bytes], layer: int, logits: npt.NDArray[np.float64]) -> None:
        with self._lock:
            self._logits[[self._row(key) for key in keys], layer] = logits

    def _row(self, key: bytes) -> int:
        if key not in self._rows:
            row, self._next = self._next, (self._next + 1) % len(self._owners)
            self._rows.pop(self._owners[row], None)
            self._rows[key], self._owners[row] = row, key
            self._logits[row] = np.nan
        return self._rows[key]


Vectors = npt.NDArray[np.float32]


Head = Mapping[str, npt.NDArray[Any]]
"""The tensors of a model's head, see `ModelSpec.head_tensors`."""


def pool(
    spec: ModelSpec, head: Head, states: npt.NDArray[Any] | StatesElsewhere, lengths: npt.NDArray[np.int32]
) -> Any:
    """The vector [batch, hidden] fp32 that the head reads from each of packed sequences: the first or last token's
    state, or the mean, after the final norm. On a device, an object that `np.asarray` turns into it."""
    token = spec.head.token
    if isinstance(states, StatesElsewhere):
        if token == "all" and spec.layer.norm_first:
            raise CapabilityError("means after a final norm are computed on the host only; choose the runtime onnx")
        return states.read(token, lengths)
    ends = np.cumsum(lengths)
    if token == "first":
        return np.asarray(states[ends - lengths], np.float32)
    if token == "last":
        return np.asarray(states[ends - 1], np.float32)
    if spec.layer.norm_first:
        sequences = np.split(states, ends[:-1])
        return np.stack([final_norm(spec, head, part.astype(np.float32)).mean(axis=0) for part in sequences])
    return _means(states, lengths)


def lens_input(spec: ModelSpec, states: npt.NDArray[Any] | StatesElsewhere, lengths: npt.NDArray[np.int32]) -> Any:
    """The vector that a lens reads from each sequence, without the final norm: the last token's state if the head reads
    it, else the mean, since in an encoder's first layers the first token has hardly attended to the others."""
    if spec.head.token == "last":
        return pool(spec, {}, states, lengths)
    return states.read("all", lengths) if isinstance(states, StatesElsewhere) else _means(states, lengths)


def logits(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> npt.NDArray[np.float64]:
    """A reranker's raw scores [n] of pooled vectors [n, hidden]. Their `sigmoid` is the probability of relevance; of
    `yes-no` heads it is the two-way softmax."""
    if spec.head.kind == "classifier":
        vectors = _normed(spec, tensors, vectors)
        # Row by row: the result of a product of matrices depends on the number of rows, in the last bit.
        dense = _ACTIVATIONS[spec.head.activation](vectors[:, None] @ tensors["dense.weight"] + tensors["dense.bias"])
        if spec.head.normed:
            dense = dense - dense.mean(axis=-1, keepdims=True)
            variance = np.mean(np.square(dense), axis=-1, keepdims=True)
            dense = dense / np.sqrt(variance + np.float32(spec.layer.norm_eps)) * tensors["dense_norm.weight"]
        scores = (dense @ tensors["out.weight"] + tensors["out.bias"])[:, 0, 0]
    elif spec.head.kind == "yes-no":
        rows = tensors["rows"]
        scores = (_normed(spec, tensors, vectors)[:, None] @ (rows[1] - rows[0]))[:, 0]
    else:
        raise ModelError(f"a model with a {spec.head.kind!r} head embeds texts; it does not score pairs")
    if not np.isfinite(scores).all():
        raise ModelError("the model's scores are not finite: its weights hold NaN or infinite values")
    return np.asarray(scores, np.float64)


def embeddings(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> Vectors:
    """An embedder's output [n, hidden] from pooled vectors, normed and of unit length if the model says so."""
    output = _normed(spec, tensors, vectors)
    if spec.head.projection:
        # Row by row, see `logits`.
        output = (output[:, None] @ tensors["projection.weight"] + tensors["projection.bias"])[:, 0]
        output = np.tanh(output) if spec.head.projected == "tanh" else output
    if spec.head.normalize:
        output = output / np.maximum(np.linalg.norm(output, axis=1, keepdims=True), 1e-12)
    if not np.isfinite(output).all():
        raise ModelError("the model's embeddings are not finite: its weights hold NaN or infinite values")
    return np.ascontiguousarray(output, dtype=np.float32)


def final_norm(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> Vectors:
    """The norm that models with `norm_first` have after the last layer."""
    if not spec.layer.norm_first:
        return vectors
    if spec.layer.norm == "layer":
        vectors = vectors - vectors.mean(axis=1, keepdims=True)
    mean_square = np.mean(np.square(vectors), axis=1, keepdims=True)
    normed: Vectors = vectors / np.sqrt(mean_square + np.float32(spec.layer.norm_eps)) * tensors["norm.weight"]
    return normed


def _normed(spec: ModelSpec, tensors: Head, vectors: Vectors) -> Vectors:
    return vectors if spec.head.token == "all" else final_norm(spec, tensors, vectors)


def _gelu(x: Vectors) -> Vectors:
    """x times the normal distribution function, with an error of at most 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    z = np.abs(x) / np.float32(math.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail: Vectors = np.asarray(0.5 * series * np.exp(-z * z), np.float32)
    return x * np.where(x < 0, tail, 1 - tail)


_ACTIVATIONS: dict[HeadActivation, Callable[[Vectors], Vectors]] = {
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * np.asarray(sigmoid(x.astype(np.float64)), np.float32),
}


def _means(states: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> Vectors:
    if compiled() and states.flags.c_contiguous:
        return mean_rows(states, lengths)
    parts = np.split(states, np.cumsum(lengths)[:-1])
    stacked: Vectors = np.stack([part.mean(axis=0, dtype=np.float32) for part in parts])
    return stacked


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


class Pruning(Protocol):
    """Decides after each layer which candidates continue."""

    def wants(self, layer: int) -> bool: ...

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision: ...


class Scorer:
    """Relevance logits after each layer, by the model's head, or by the lens where it is more accurate."""

    def __init__(
        self, spec: ModelSpec, head: Mapping[str, npt.NDArray[Any]], calibration: Calibration | None = None
    ) -> None:
        self._spec = spec
        self._head = head
        self._lens = calibration.lens if calibration is not None else None
        self._lens_layers = frozenset(calibration.lens_layers if calibration is not None else ())

    def read(self, layer: int, states: Any, lengths: npt.NDArray[np.int32]) -> Any:
        """The vectors [batch, hidden] from which a chunk's sequences are scored after `layer` layers."""
        if layer in self._lens_layers:
            return lens_input(self._spec, states, lengths)
        return pool(self._spec, self._head, states, lengths)

    def __call__(self, layer: int, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Logits [n] of vectors [n, hidden] that `read` returned after `layer` layers."""
        if self._lens is not None and layer in self._lens_layers:
            return self._lens.logits(layer, vectors)
        return logits(self._spec, self._head, vectors)


class CandidatePool:
    """The candidates' logits so far, and what retrieval adds to them.

    The blend is scaled by the spread of the logits: a calibrated one, so that a score depends only on its own logit and
    on retrieval; else that of this pool, where a candidate that left early counts with its last logit."""

    def __init__(
        self, candidates: int, *, retrieved: Retrieved, calibration: Calibration | None = None, weight: float = WEIGHT,
        unread: Sequence[bool] | None = None,
    ) -> None:  # fmt: skip
        """Without a calibration a layer's logits are taken for the final ones. `weight` is the model's share; `unread`:
        see `Reranker.explain`."""
        found = retrieved_scores(candidates, retrieved)
        self._logits = np.full(candidates, np.nan)
        self._spread = None if calibration is None else calibration.spread
        self._forecast = None if calibration is None else calibration.forecast(retrieved=found is not None)
        self._places = np.zeros(candidates) if found is None else standard(found)[:candidates]
        self._prior = None if found is None else prior_logits(found, weight)[:candidates]
        self._sharpness = 1.0 if found is None else sharpness(weight)
        self._unread = np.zeros(candidates, bool) if unread is None or found is None else np.asarray(unread, bool)

    @property
    def forecast(self) -> Forecast | None:
        """The prediction of final logits from the logits after a layer, on the scale of the scores' log-odds."""
        if self._forecast is None:
            return None
        scale = 0.0 if self._unread.all() else self._sharpness  # the scores of unread candidates are known
        errors = tuple(0.0 if scale == 0 else error * scale for error in self._forecast.errors)
        return replace(self._forecast, errors=errors)

    def see(
        self, ids: npt.NDArray[np.int64], values: npt.NDArray[np.float64], layer: int = -1
    ) -> npt.NDArray[np.float64]:
        """Records logits [n] after `layer` layers (-1: all; not of 0); returns the scores [n] in 0 ... 1."""
        if self._forecast is not None:
            values = self._forecast(layer, values, self._places[ids])
        if layer != 0:
            self._logits[ids] = values
        if self._prior is None:
            return sigmoid(values)
        if self._forecast is not None:
            values = np.where(self._unread[ids], self._forecast(0, values * 0.0, self._places[ids]), values)
        spread = np.nanstd(self._logits) if self._spread is None else self._spread
        return sigmoid(self._sharpness * (values + spread * self._prior[ids]))

    @property
    def separable(self) -> bool:
        """Whether a candidate's score depends only on its own logit and on retrieval."""
        return self._prior is None or self._spread is not None

    def part(self, ids: npt.NDArray[np.int64]) -> CandidatePool:
        part = CandidatePool(len(ids), retrieved=False)
        part._spread, part._forecast, part._sharpness = self._spread, self._forecast, self._sharpness
        part._places, part._unread = self._places[ids], self._unread[ids]
        part._prior = None if self._prior is None else self._prior[ids]
        return part

    def relevance(self) -> npt.NDArray[np.float64]:
        """The model's probability of relevance [candidates]; nan for those that no layer has read."""
        return sigmoid(self._logits)


@dataclass(slots=True)
class LayerReport:
    """The active candidates [active] after `layer` layers, their provisional scores [active], and the decision."""

    layer: int
    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    decision: Decision


class LackingLogits(Exception):
    """The logits of seen pairs end before pruning does. `numbers`: the candidates whose logits go on in a pass."""

    def __init__(self, numbers: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.numbers = numbers


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier passes found of the candidates: their `keys` in `seen`; those of `anew` are computed again."""

    seen: SeenPairs
    keys: Sequence[bytes]
    anew: npt.NDArray[np.bool_]


Watch = Callable[[LayerReport], object]
"""A function that gets the report of each layer during the pass."""


@dataclass(slots=True)
class PruningObserver:
    """Scores candidates after each layer that pruning uses, lets `pruning` decide, and keeps the ranking. A pass runs
    those in `entering`, and `known` tells the logits of others; attributes use the numbers of the pool.

    `scores` [n] are the last known; `groups` those not pruned, best first (early winners before later ones); `dropped`
    the pruned, the last first. `close` frees the lease."""

    spec: ModelSpec
    scorer: Scorer
    pruning: Pruning
    pool: CandidatePool
    candidates: int
    every_layer: bool = False
    watch: Watch | None = None
    budget: MemoryBudget | None = None
    known: Known | None = None
    scores: npt.NDArray[np.float64] = field(init=False)
    reports: list[LayerReport] = field(default_factory=list)
    groups: list[npt.NDArray[np.int64]] = field(default_factory=list)
    dropped: list[npt.NDArray[np.int64]] = field(default_factory=list)
    entering: npt.NDArray[np.int64] = field(init=False)
    _beside: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _logits: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    _vectors: npt.NDArray[np.float32] = field(init=False)
    _arriving: list[tuple[npt.NDArray[np.int64], Any]] = field(default_factory=list)
    _lease: Lease | None = None
    _layer: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None:
            self._lease = self.budget.reserve("candidates", self._needed())
        self.scores = np.full(self.candidates, np.nan)
        self.entering = np.arange(self.candidates)
        self._vectors = np.empty((0, self.spec.layer.hidden), np.float32)

    def wants(self, layer: int) -> bool:
        self._layer = layer
        return self._looks(layer)

    def collect(self, chunk: TokenChunk, states: Any) -> None:
        vectors = self.scorer.read(self._layer, states, chunk.lengths)
        if isinstance(vectors, np.ndarray):
            self._vectors[chunk.ids] = vectors
        else:  # from a device: while they are on their way, the other chunks are computed
            self._arriving.append((chunk.ids, vectors))

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if layer == 0:
            entering = active
            if self.pruning.wants(0):
                entering = self._judged(0, active, self.pool.see(active, np.zeros(len(active)), 0))
            kept = self.entering = self._part(entering)
            self._vectors = np.empty((len(kept), self.spec.layer.hidden), np.float32)
        elif self._looks(layer):
            kept = self._examined(layer, active)
        else:
            return active
        if not len(kept) and len(self._beside):  # the pass ends; the logits of the others are known
            self.decide(next(each for each in self._looked if each > layer), kept)
        return kept

    def _examined(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        for ids, vectors in self._arriving:
            self._vectors[ids] = vectors
        self._arriving.clear()
        parts = [active[start : start + SCORED_TOGETHER] for start in range(0, len(active), SCORED_TOGETHER)]
        values = np.concatenate([np.empty(0), *(self.scorer(layer, self._vectors[part]) for part in parts)])
        computed = self.entering[active]
        if self.known is not None:
            self.known.seen.note([self.known.keys[number] for number in computed], layer, values)
            told = self._logits[self._beside, layer]
            if np.isnan(told).any():
                raise LackingLogits(np.concatenate([computed, self._beside[np.isnan(told)]]))
            values = np.concatenate([values, told])
        numbers = np.concatenate([computed, self._beside])
        order = np.argsort(numbers)
        deferred = self._judged(layer, numbers[order], self.pool.see(numbers[order], values[order], layer))
        if layer == self.spec.layers and len(deferred):
            self.groups.append(self._by_score(deferred))
            deferred = deferred[:0]
        self._beside = self._beside[np.isin(self._beside, deferred)]
        return active[np.isin(computed, deferred)]

    def _part(self, entering: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of the entering candidates that have to be computed; the logits of the others are known."""
        if self.known is None:
            return entering
        self._logits = self.known.seen.read(self.known.keys)
        anew = np.isnan(self._logits[entering, self._looked[0]]) | self.known.anew[entering]
        self._beside = entering[~anew]
        return np.asarray(entering[anew])

    def ranking(self) -> npt.NDArray[np.int64]:
        """All candidates, best first. Ties keep the order of the input."""
        return np.concatenate([*self.groups, *self.dropped])

    def close(self) -> None:
        """Frees the vectors' memory. Scores and ranking stay."""
        self._vectors = self._vectors[:0].copy()
        if self._lease is not None:
            self._lease.release()

    def _needed(self) -> int:
        width = self.spec.layer.hidden * 4
        vectors = (self.candidates + SCORING_ARRAYS * min(self.candidates, SCORED_TOGETHER)) * width
        # Scores, logits and retrieval's amounts; and ids and scores for each layer that is examined.
        return vectors + self.candidates * 8 * (3 + 2 * self.spec.layers)

    def _judged(
        self, layer: int, numbers: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.int64]:
        """Lets pruning decide on scored candidates, records the decision, and returns the candidates that continue."""
        self.scores[numbers] = scores
        decision = self.pruning.decide(layer, numbers, scores)
        self.reports.append(LayerReport(layer, numbers, scores, decision))
        if self.watch is not None:
            self.watch(self.reports[-1])
        if len(decision.selected):
            self.groups.append(decision.selected)
        if len(decision.dropped):
            self.dropped.insert(0, self._by_score(decision.dropped))
        return decision.deferred

    @property
    def _looked(self) -> list[int]:
        return [layer for layer in range(1, self.spec.layers + 1) if self._looks(layer)]

    def _looks(self, layer: int) -> bool:
        return self.every_layer or layer == self.spec.layers or self.pruning.wants(layer)

    def _by_score(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ids[np.lexsort((ids, -self.scores[ids]))]
