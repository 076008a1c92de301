"""The final order: a reranker's logits mixed with the order that retrieval gave.

A small cross-encoder knows less than the retrievers it follows on domains it has not seen. Their order is evidence of
its own, so the default order is a mix; weight and constant were chosen on domains left out of training.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats64 = npt.NDArray[np.float64]

WEIGHT = 0.6
"""The reranker's share of the mix."""

RANK_CONSTANT = 10
"""Damps the first ranks: 1 / (constant + rank)."""


def standard(scores: Floats64) -> Floats64:
    """Mean 0 and deviation 1 along the last axis; zeros where nothing varies."""
    spread = scores.std(-1, keepdims=True)
    return np.where(spread > 1e-9, (scores - scores.mean(-1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0)


def retrieval_scores(count: int, constant: int = RANK_CONSTANT) -> Floats64:
    """1 / (constant + rank) for ranks 1 to ``count``: what an order alone says, whatever its scores meant."""
    return 1.0 / (constant + 1 + np.arange(count, dtype=np.float64))


def blended(logits: Floats64, weight: float = WEIGHT, constant: int = RANK_CONSTANT) -> Floats64:
    """``weight * z(logits) + (1 - weight) * z(1 / (constant + rank))``.

    The last axis lists the candidates in the order of retrieval, best first; z is taken over it. Raising one
    candidate's logit never lowers its place.

    Raises:
        ValueError: the weight is not within 0 and 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 and 1")
    retrieved = standard(retrieval_scores(logits.shape[-1], constant))
    return weight * standard(logits) + (1 - weight) * retrieved


def prior_logits(count: int, weight: float = WEIGHT, constant: int = RANK_CONSTANT) -> Floats64:
    """What each of ``count`` candidates in retrieval order gains, in standard deviations of the pool's logits.

    ``logits + logits.std() * prior_logits(n)`` orders the pool as `blended` does: the same mix on the scale of the
    logits, so that a score stays a relevance and single candidates can be scored without their pool.

    Raises:
        ValueError: the weight is not within 0 (exclusive) and 1.
    """
    if not 0.0 < weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 (exclusive) and 1")
    return standard(retrieval_scores(count, constant)) * (1 - weight) / weight
