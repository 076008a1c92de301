"""The final order: a reranker's logits mixed with the scores of retrieval. The share depends on the query alone, so
pruning can use it; the table is in docs/default-order.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.text.sentences import sentences

Floats64 = npt.NDArray[np.float64]

Retrieved = bool | Sequence[float]
"""The result of retrieval: the score of each candidate; True if best first; False if in no order."""

BM25_WEIGHT = 0.2
"""Weight of BM25 beside the vectors' 0.8: chosen on the train halves of judged sets (benchmark `search-quality`)."""

WEIGHT = 0.62
"""The reranker's share of the mix for a query of one sentence."""

LONG_WEIGHT = 0.05
"""The reranker's share for a long query."""

LONG = 4
"""A query with at least this many sentences is long. From one sentence up to this number the share falls linearly."""

COMPARED = 60
"""The best scores of retrieval that the others are compared with, whatever the size of the pool."""

_SENTENCE = 25
"""This many words count as one sentence, for queries that have no full stops."""

RANK_CONSTANT = 10
"""Damps the first ranks: 1 / (constant + rank)."""


def share_of(query: str) -> float:
    """The reranker's share of the mix for a query, by the query's number of sentences."""
    length = max(len(sentences(query)), len(query.split()) / _SENTENCE)
    return float(np.interp(length, (1, LONG), (WEIGHT, LONG_WEIGHT)))


def standard(scores: Floats64) -> Floats64:
    """The scores scaled along the last axis, so that the `COMPARED` best have mean 0 and deviation 1."""
    largest = np.abs(scores).max(-1, keepdims=True, initial=0.0)
    scores = scores / np.where(largest > 0, largest, 1.0)  # squares of large scores would overflow
    best = np.sort(scores, axis=-1)[..., -COMPARED:]
    spread = best.std(-1, keepdims=True)
    return np.where(spread > 1e-9, (scores - best.mean(-1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0)


def retrieval_scores(count: int) -> Floats64:
    """1 / (constant + rank) for ranks 1 to ``count``: scores for candidates of which only the order is known."""
    return 1.0 / (RANK_CONSTANT + 1 + np.arange(count, dtype=np.float64))


def retrieved_scores(count: int, retrieved: Retrieved) -> Floats64 | None:
    """The retrieval scores of ``count`` candidates and of any that follow, higher is better; None if unordered.
    InputError if there are too few, or one is not finite."""
    if isinstance(retrieved, bool):
        return retrieval_scores(count) if retrieved else None
    try:
        scores = np.asarray(retrieved, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("the scores of retrieval are numbers, one for each candidate") from None
    if scores.ndim != 1 or scores.size < count:
        raise InputError(f"retrieval gave {scores.size} scores for {count} candidates")
    if not np.isfinite(scores).all():
        raise InputError("a score of retrieval is not finite")
    return scores


def sharpness(weight: float = WEIGHT) -> float:
    """The factor for the log-odds of a blend, below 1 where the reranker's share is small, so that the best candidates'
    probabilities can be told apart."""
    return min(1.0, weight / WEIGHT)


def prior_logits(retrieved: Floats64, weight: float = WEIGHT) -> Floats64:
    """What each retrieval score adds to its logit, in standard deviations of the pool's logits.

    ``logits + logits.std() * prior_logits(retrieved)`` orders as ``weight * z(logits) + (1 - weight) * z(retrieved)``
    (z standardizes). The sigmoid of the sum, less steep by `sharpness`, is the score."""
    if not 0.0 < weight <= 1.0:
        raise ValueError(f"blend weight {weight} is not within 0 (exclusive) and 1")
    return standard(retrieved) * (1 - weight) / weight
