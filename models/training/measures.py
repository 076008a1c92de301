"""The measure by which rankings are judged, nDCG, and the blended order of a whole pool."""

from __future__ import annotations

import numpy as np

from ..blending import WEIGHT, Floats64, standard


def ndcg(scores: Floats64, grades: Floats64, ideal: Floats64, k: int = 10) -> Floats64:
    """nDCG@k per query. ``ideal`` holds every judged grade of the query, so missed documents lower the value.

    Gains are the grades themselves, discounts log2(rank + 1), as in BEIR. Ties keep the retrieval order.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    gains = np.take_along_axis(grades, order, axis=-1)
    discount = 1.0 / np.log2(np.arange(2, gains.shape[-1] + 2))
    best = -np.sort(-ideal, axis=-1)[..., :k]
    limit = (best / np.log2(np.arange(2, best.shape[-1] + 2))).sum(-1)
    return np.asarray((gains * discount).sum(-1) / np.maximum(limit, 1e-9))


def blended(logits: Floats64, retrieved: Floats64, weight: float = WEIGHT) -> Floats64:
    """``weight * z(logits) + (1 - weight) * z(retrieved)``, where z standardizes over the candidates (the last axis).
    A candidate whose logit rises never gets a lower place.

    Raises:
        ValueError: the weight is not within 0 and 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 and 1")
    return weight * standard(logits) + (1 - weight) * standard(retrieved)
