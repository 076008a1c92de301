"""The final order: a reranker's logits mixed with what retrieval found.

A small cross-encoder knows less than the retrievers it follows on domains it has not seen. What they found is evidence
of its own, so the default order is a mix. The reranker's share follows from the length of the query, which is known
before the pass, so that pruning can use it. Shares and lengths were chosen on domains that were left out of training
(the table is in the model card).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Floats64 = npt.NDArray[np.float64]

Retrieved = bool | Sequence[float]
"""What is known of candidates from retrieval: the score of each; True if they come in its order, best first, and the
scores are not known; False if they come in no order."""

WEIGHT = 0.35
"""The reranker's share of the mix for a short query."""

LONG_WEIGHT = 0.05
"""Its share for a long one: a small model that was trained on questions and titles misjudges whole accounts of need."""

SHORT, LONG = 12, 30
"""Words of a query up to which it is short, and from which on it is long; between them the share falls evenly."""

RANK_CONSTANT = 10
"""Damps the first ranks: 1 / (constant + rank)."""


def share_of(query: str) -> float:
    """The reranker's share of the mix for a query, by its words."""
    words = len(query.split())
    return float(np.interp(words, (SHORT, LONG), (WEIGHT, LONG_WEIGHT)))


def standard(scores: Floats64) -> Floats64:
    """Mean 0 and deviation 1 along the last axis, whatever their scale; zeros where nothing varies."""
    largest = np.abs(scores).max(-1, keepdims=True, initial=0.0)
    scores = scores / np.where(largest > 0, largest, 1.0)  # squares of large ones would overflow
    spread = scores.std(-1, keepdims=True)
    return np.where(spread > 1e-9, (scores - scores.mean(-1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0)


def retrieval_scores(count: int, constant: int = RANK_CONSTANT) -> Floats64:
    """1 / (constant + rank) for ranks 1 to ``count``: what an order alone says, whatever its scores meant."""
    return 1.0 / (constant + 1 + np.arange(count, dtype=np.float64))


def retrieved_scores(count: int, retrieved: Retrieved) -> Floats64 | None:
    """What retrieval says of ``count`` candidates, higher is better; None if it says nothing.

    Raises:
        InputError: there are not as many scores as candidates, or one is no finite number.
    """
    if isinstance(retrieved, bool):
        return retrieval_scores(count) if retrieved else None
    try:
        scores = np.asarray(retrieved, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("the scores of retrieval are numbers, one for each candidate") from None
    if scores.shape != (count,):
        raise InputError(f"retrieval gave {scores.size} scores for {count} candidates")
    if not np.isfinite(scores).all():
        raise InputError("a score of retrieval is not finite")
    return scores


def blended(logits: Floats64, retrieved: Floats64, weight: float = WEIGHT) -> Floats64:
    """``weight * z(logits) + (1 - weight) * z(retrieved)``, z taken over the candidates, the last axis. Raising one
    candidate's logit never lowers its place.

    Raises:
        ValueError: the weight is not within 0 and 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 and 1")
    return weight * standard(logits) + (1 - weight) * standard(retrieved)


def prior_logits(retrieved: Floats64, weight: float = WEIGHT) -> Floats64:
    """What each candidate gains by its score in retrieval, in standard deviations of the pool's logits.

    ``logits + logits.std() * prior_logits(retrieved)`` orders the pool as `blended` does: the same mix on the scale of
    the logits, so that a score stays a relevance and single candidates can be scored without their pool.

    Raises:
        ValueError: the weight is not within 0 (exclusive) and 1.
    """
    if not 0.0 < weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 (exclusive) and 1")
    return standard(retrieved) * (1 - weight) / weight
