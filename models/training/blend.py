"""The final order: the reranker's scores mixed with the order that retrieval gave."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats64 = npt.NDArray[np.float64]
RANK_CONSTANT = 10


def standard(scores: Floats64) -> Floats64:
    """Mean 0 and deviation 1 along the last axis; zeros where nothing varies."""
    spread = scores.std(-1, keepdims=True)
    return np.where(spread > 1e-9, (scores - scores.mean(-1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0)


def retrieval_scores(count: int, constant: int = RANK_CONSTANT) -> Floats64:
    """1 / (constant + rank) for ranks 1 to ``count``: what an order alone says, whatever its scores meant."""
    return 1.0 / (constant + 1 + np.arange(count, dtype=np.float64))


def blended(logits: Floats64, weight: float, constant: int = RANK_CONSTANT) -> Floats64:
    """``weight * z(logits) + (1 - weight) * z(1 / (constant + rank))``.

    The last axis lists the candidates in the order of retrieval, best first; z is taken over it. Raising one
    candidate's logit never lowers its place.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 and 1")
    retrieved = standard(retrieval_scores(logits.shape[-1], constant))
    return weight * standard(logits) + (1 - weight) * retrieved


def ndcg(scores: Floats64, grades: Floats64, ideal: Floats64, k: int = 10) -> Floats64:
    """nDCG@k per query. ``ideal`` holds every judged grade of the query, so what retrieval missed counts.

    Gains are the grades themselves, discounts log2(rank + 1), as in BEIR. Ties keep the retrieval order.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    gains = np.take_along_axis(grades, order, axis=-1)
    discount = 1.0 / np.log2(np.arange(2, gains.shape[-1] + 2))
    best = -np.sort(-ideal, axis=-1)[..., :k]
    limit = (best / np.log2(np.arange(2, best.shape[-1] + 2))).sum(-1)
    return np.asarray((gains * discount).sum(-1) / np.maximum(limit, 1e-9))
