"""The final order: a reranker's logits mixed with what retrieval found.

A small cross-encoder knows less than the retrievers it follows on domains it has not seen. What they found is evidence
of its own, so the default order is a mix. The reranker was trained on questions and titles: on a query of one sentence
it deserves more than half, on an account of several sentences next to nothing. The share follows from the query alone,
so it is known before the pass, and pruning can use it. It was fitted by leaving whole domains out in turn (the table is
in docs/default-order.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.sentences import sentences

Floats64 = npt.NDArray[np.float64]

Retrieved = bool | Sequence[float]
"""What is known of candidates from retrieval: the score of each; True if they come in its order, best first, and the
scores are not known; False if they come in no order."""

WEIGHT = 0.62
"""The reranker's share of the mix for a query of one sentence."""

LONG_WEIGHT = 0.05
"""Its share for a long query."""

LONG = 4
"""Sentences from which on a query is long; between one and as many the share falls evenly."""

_SENTENCE = 25
"""Words of a query that count as a sentence, where somebody asks without full stops."""

RANK_CONSTANT = 10
"""Damps the first ranks: 1 / (constant + rank)."""


def share_of(query: str) -> float:
    """The reranker's share of the mix for a query, by its sentences."""
    length = max(len(sentences(query)), len(query.split()) / _SENTENCE)
    return float(np.interp(length, (1, LONG), (WEIGHT, LONG_WEIGHT)))


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
