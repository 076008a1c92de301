"""A click model over embedding tables, trained on made-up clicks: a factorization machine.

Source: Rendle, Factorization Machines (ICDM 2010): a weight and a vector for each value of each feature, and the inner
products of all pairs of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

FEATURES: Mapping[str, int] = {
    "user": 4000, "item": 2000, "brand": 300, "category": 60, "page": 48, "country": 40, "hour": 24, "referrer": 16,
    "age": 10, "weekday": 7, "device": 5, "season": 4,
}  # fmt: skip
"""Number of values of each feature, which is the number of rows of its table."""

DIM = 8
"""Components of a row: the weight, and the vector."""

_RATE = 0.1
_BATCH = 1000
_PIECE = 5000
"""Number of requests whose rows are in memory at a time."""

_DECAY = 1e-4
"""Weight of the squared rows in the loss."""


@dataclass(frozen=True, slots=True)
class Clicks:
    """Requests and whether they were clicked.

    Attributes:
        ids: value of each feature [n, features].
        clicked: [n], 0 or 1.
        chance: probability of a click [n] that the generator used: the planted truth.
    """

    ids: Ids
    clicked: Floats
    chance: Floats


@dataclass(frozen=True, slots=True)
class ClickModel:
    """A table [values, DIM] for each feature, and the constant of the sum."""

    tables: Mapping[str, Floats]
    bias: float

    def chances(self, vectors: Floats) -> Floats:
        """Probabilities of a click [n] for the features' rows side by side, [n, features * DIM]."""
        return _sigmoid(self.bias + _sums(vectors.reshape(len(vectors), -1, DIM)))


def planted(random: np.random.Generator) -> ClickModel:
    """The truth that clicks are drawn from: a random model of the same form."""
    tables = {}
    for name, values in FEATURES.items():
        rows = 0.35 * random.standard_normal((values, DIM), np.float32)
        rows[:, 0] *= 1.2
        tables[name] = rows
    return ClickModel(tables, -1.0)


def made(truth: ClickModel, count: int, random: np.random.Generator) -> Clicks:
    """Requests whose values are skewed as in practice, few of them frequent, with clicks drawn from the truth."""
    columns = []
    for values in FEATURES.values():
        weights = (np.arange(values) + 5.0) ** -0.7
        columns.append(random.choice(values, size=count, p=weights / weights.sum()))
    ids = np.stack(columns, axis=1)
    chance = np.concatenate([
        truth.chances(rows_of(truth.tables, ids[start : start + _PIECE])) for start in range(0, count, _PIECE)
    ])  # fmt: skip
    return Clicks(ids, (random.random(count) < chance).astype(np.float32), chance)


def trained(clicks: Clicks, *, rounds: int, random: np.random.Generator) -> ClickModel:
    """A model fitted to the clicks by Adagrad with logistic loss, in `rounds` passes."""
    tables = {
        name: (0.05 * random.standard_normal((values, DIM), np.float32)).astype(np.float32)
        for name, values in FEATURES.items()
    }
    for rows in tables.values():
        rows[:, 0] = 0.0
    past = {name: np.full_like(rows, 1e-2) for name, rows in tables.items()}
    share = float(np.clip(clicks.clicked.mean(), 1e-3, 1 - 1e-3))
    bias = float(np.log(share / (1 - share)))
    for _ in range(rounds):
        order = random.permutation(len(clicks.ids))
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            ids = clicks.ids[chosen]
            vectors = rows_of(tables, ids).reshape(len(ids), -1, DIM)
            error = _sigmoid(bias + _sums(vectors)) - clicks.clicked[chosen]
            slope = error[:, None, None] * (vectors.sum(axis=1, keepdims=True) - vectors)
            slope[:, :, 0] = error[:, None]
            for place, name in enumerate(FEATURES):
                _step(tables[name], past[name], ids[:, place], slope[:, place])
            bias -= _RATE * 0.1 * float(error.mean())
    return ClickModel(tables, bias)


def rows_of(tables: Mapping[str, Floats], ids: Ids) -> Floats:
    """Each feature's row side by side, [n, features * DIM], from tables in memory."""
    return np.concatenate([tables[name][column] for name, column in zip(FEATURES, ids.T, strict=True)], axis=1)


def memory_needed(count: int) -> int:
    """Bytes that making `count` requests and training on them hold at most."""
    columns = len(FEATURES)
    return count * (2 * 8 * columns + 32) + 8 * max(_PIECE, _BATCH) * columns * DIM * 8


def quality(chances: npt.ArrayLike, clicked: npt.ArrayLike) -> dict[str, float]:
    """How well predicted probabilities fit clicks."""
    return {"auc": auc(chances, clicked), "log_loss": log_loss(chances, clicked)}


def auc(scores: npt.ArrayLike, clicked: npt.ArrayLike) -> float:
    """Probability that a clicked request has a higher score than another one; equal scores count half."""
    scores, positive = np.asarray(scores), np.asarray(clicked) > 0
    _, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    ones = int(positive.sum())
    zeros = len(positive) - ones
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def log_loss(chances: npt.ArrayLike, clicked: npt.ArrayLike) -> float:
    """Mean logistic loss of predicted probabilities, in nats."""
    p, y = np.clip(np.asarray(chances, np.float64), 1e-7, 1 - 1e-7), np.asarray(clicked, np.float64)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def _step(rows: Floats, past: Floats, ids: Ids, slope: Floats) -> None:
    """One Adagrad step for the rows `ids` [n] with slopes [n, DIM]; slopes of the same row are added first."""
    places = (ids[:, None] * DIM + np.arange(DIM)).reshape(-1)
    total = np.bincount(places, weights=slope.reshape(-1), minlength=rows.size).reshape(rows.shape)
    used = np.unique(ids)
    gradient = (total[used] + _DECAY * rows[used]).astype(np.float32)
    past[used] += gradient * gradient
    rows[used] -= _RATE * gradient / np.sqrt(past[used])


def _sums(vectors: Floats) -> Floats:
    """Sum of the weights and of the inner products of all pairs, [n], from rows [n, features, DIM]."""
    weights, factors = vectors[:, :, 0].sum(axis=1), vectors[:, :, 1:]
    total = factors.sum(axis=1)
    pairs: Floats = weights + 0.5 * ((total * total).sum(axis=1) - (factors * factors).sum(axis=(1, 2)))
    return pairs


def _sigmoid(values: Floats) -> Floats:
    result: Floats = (1 / (1 + np.exp(-np.clip(values, -30, 30)))).astype(np.float32)
    return result
