"""Small models fitted on a reranker's judgements, stored beside it in `evidence.json`, one per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock
from edge.files.sealed import read_sealed, write_sealed
from edge.models.manifest import remedy

if TYPE_CHECKING:
    from edge.models.packed import PackedModel

Floats = npt.NDArray[np.float64]

_SMALLEST = 1e-6
_STEPS = 50
_FLAT = 30.0
"""Log-odds of a larger magnitude count as certain."""


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model: a weight for each signal, standardized by `mean` and `scale`, then the constant."""

    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def probability(self, signals: npt.ArrayLike) -> Floats:
        """Probabilities [n] of signals [n, signals]."""
        values = (np.asarray(signals, np.float64) - np.array(self.mean)) / np.array(self.scale)
        return probability(with_constant(values), self.weights)

    def to_json(self) -> dict[str, Any]:
        """The model as JSON, rounded to six digits; so few examples determine no more."""
        return {name: [float(f"{v:.6g}") for v in getattr(self, name)] for name in ("weights", "mean", "scale")}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Logistic:
        return cls(*(tuple(float(v) for v in stored[name]) for name in ("weights", "mean", "scale")))


def fit(signals: Floats, right: npt.NDArray[np.bool_], *, ridge: float = 1.0) -> Logistic:
    """Fits a ridge logistic regression on `signals` [n, signals] and `right` [n] by Newton's method. The constant has a
    very small penalty, so that one class alone has a solution."""
    mean, scale = signals.mean(axis=0), np.maximum(signals.std(axis=0), _SMALLEST)
    values = with_constant((signals - mean) / scale)
    penalty = np.diag([*[ridge] * (values.shape[1] - 1), 1e-2])
    weights = np.zeros(values.shape[1])
    for _ in range(_STEPS):
        p = probability(values, weights)
        gradient = values.T @ (right - p) - penalty @ weights
        step = np.linalg.solve((values * (p * (1 - p))[:, None]).T @ values + penalty, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            break
    return Logistic(tuple(weights.tolist()), tuple(mean.tolist()), tuple(scale.tolist()))


def log_odds(chance: float) -> float:
    """The log-odds of a probability, which is first limited to 0.0001 ... 0.9999."""
    clipped = min(max(chance, 1e-4), 1 - 1e-4)
    return float(np.log(clipped / (1 - clipped)))


def with_constant(values: Floats) -> Floats:
    return np.hstack((values, np.ones((len(values), 1))))


def probability(values: Floats, weights: Sequence[float] | Floats) -> Floats:
    """Probabilities [n] of standardized values [n, signals + 1]."""
    odds = np.clip(values @ np.asarray(weights, np.float64), -_FLAT, _FLAT)
    return np.asarray(1 / (1 + np.exp(-odds)), np.float64)


FILE = "evidence.json"

RESULT_SIGNALS = ("blend", "best")
"""The log-odds of a result's blended score, and of the best result's."""


ANSWER_SIGNALS = ("window", "reader", "words", "ahead")
"""The reranker's log-odds of the words shown, and the reader's of its best answer in these; the share of the question's
words that they hold; and by how much the first exceeds the median."""

CHOICE, UNIT, WINDOW = "choice of a window", "answers in a unit", "answers in a window"
"""The names of the models of these signals: which window is shown, and the probabilities that the unit around the
reader's answer and the shown window hold the answer."""


def results_name(embedder: str) -> str:
    """The name under which the model that turns blended scores into probabilities is stored beside a reranker."""
    return f"results with {embedder}"


def result_signals(blended: Sequence[float]) -> list[list[float]]:
    """The values of `RESULT_SIGNALS` for the blended scores [n] of one search, best first."""
    return [[log_odds(score), log_odds(blended[0])] for score in blended]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fitted model, valid for these `signals` and `embedder`. `threshold`: smallest probability of found."""

    signals: tuple[str, ...]
    model: Logistic
    threshold: float
    embedder: str
    examples: int

    def probability(self, signals: tuple[float, ...] | list[float]) -> float:
        """The probability that values of `signals`, in their order, stand for."""
        return float(self.model.probability([signals])[0])


def load(reranker: PackedModel, name: str, signals: tuple[str, ...]) -> Evidence | None:
    """The model `name` beside a reranker; None without one for its weights and signals. CorruptBlock."""
    directory = reranker.path
    stored = _read(directory / FILE)
    entry = stored.get("models", {}).get(name) if stored.get("fingerprint") == reranker.fingerprint else None
    if entry is None:
        return None
    try:
        found = Evidence(
            tuple(entry["signals"]), Logistic.from_json(entry), float(entry["threshold"]), str(entry["embedder"]),
            int(entry["examples"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptBlock(f"{directory / FILE} is damaged: {error!r}; {remedy(directory)}, or fit it again") from error
    return found if found.signals == signals else None


def save(reranker: PackedModel, models: Mapping[str, Evidence]) -> None:
    """Writes models by name beside a reranker, and drops those of other weights or of a damaged file."""
    path = reranker.path / FILE
    try:
        stored = read_sealed(path) or {}
    except CorruptBlock:
        stored = {}
    kept = stored.get("models", {}) if stored.get("fingerprint") == reranker.fingerprint else {}
    for name, fitted in models.items():
        kept[name] = {
            "signals": list(fitted.signals), **fitted.model.to_json(), "threshold": round(fitted.threshold, 4),
            "embedder": fitted.embedder, "examples": fitted.examples,
        }  # fmt: skip
    write_sealed(path, {"fingerprint": reranker.fingerprint, "models": kept})


def verify(directory: Path) -> None:
    """Checks the file beside a reranker, if there is one. CorruptBlock if it is damaged."""
    _read(directory / FILE)


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = read_sealed(path)
    except CorruptBlock as error:
        raise CorruptBlock(f"{error}; {remedy(path.parent)}, or fit it again") from error
    return stored or {}
