"""`Logistic`: a small logistic regression that turns a few signals into one probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SMALLEST = 1e-6
_STEPS = 50
_FLAT = 30.0
"""Log-odds of a larger magnitude count as certain."""


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model.

    Attributes:
        weights: one weight for the standardized value of each signal, then the constant.
        mean, scale: of each signal, to standardize it.
    """

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
        """The model from a document that `to_json` wrote."""
        return cls(*(tuple(float(v) for v in stored[name]) for name in ("weights", "mean", "scale")))


def fit(
    signals: Floats, right: npt.NDArray[np.bool_], *, counts: npt.ArrayLike | None = None, ridge: float = 1.0
) -> Logistic:
    """Fits a ridge logistic regression by Newton's method.

    Args:
        signals: [n, signals].
        right: [n], whether each example is a positive one.
        counts: [n], weight of each example; all weights are equal if None.
        ridge: penalty on the squared weights. The constant has a very small penalty, so that the fit has a solution
            even if all examples are of one class.
    """
    mean, scale = signals.mean(axis=0), np.maximum(signals.std(axis=0), _SMALLEST)
    values = with_constant((signals - mean) / scale)
    share = np.ones(len(values)) if counts is None else np.asarray(counts, np.float64)
    penalty = np.diag([*[ridge] * (values.shape[1] - 1), 1e-2])
    weights = np.zeros(values.shape[1])
    for _ in range(_STEPS):
        p = probability(values, weights)
        gradient = values.T @ (share * (right - p)) - penalty @ weights
        step = np.linalg.solve((values * (share * p * (1 - p))[:, None]).T @ values + penalty, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            break
    return Logistic(tuple(weights.tolist()), tuple(mean.tolist()), tuple(scale.tolist()))


def log_odds(chance: float) -> float:
    """The log-odds of a probability, which is first limited to 0.0001 ... 0.9999."""
    clipped = min(max(chance, 1e-4), 1 - 1e-4)
    return float(np.log(clipped / (1 - clipped)))


def with_constant(values: Floats) -> Floats:
    """The signals [n, signals] with a column of ones appended."""
    return np.hstack((values, np.ones((len(values), 1))))


def probability(values: Floats, weights: Sequence[float] | Floats) -> Floats:
    """Probabilities [n] of standardized values [n, signals + 1]."""
    odds = np.clip(values @ np.asarray(weights, np.float64), -_FLAT, _FLAT)
    return np.asarray(1 / (1 + np.exp(-odds)), np.float64)
