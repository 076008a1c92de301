"""The final order: a reranker's logits mixed with the scores of retrieval. The share depends on the query alone, so
pruning can use it; the table is in docs/default-order.md. And fusion of the rankings of words and vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

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


Key = TypeVar("Key", int, tuple[int, int], tuple[str, int])

_LEAST = 1.0  # The smallest divisor for BM25 scores: a best score below it comes from words that most texts hold.

FULL_MATCH = 0.7
"""The share of `Statistics.whole_score` from which a BM25 score counts in full, where that is asked for: otherwise a
fact that shares only "of" with a question gets all the weight of BM25, if no fact has a better score."""

_CONSTANT = 60  # Of reciprocal rank fusion.


def convex_combination(
    words: Mapping[Key, float], near: Mapping[Key, float], weight: float, *, full: float = 0.0, floor: float = 0.0
) -> list[tuple[Key, float]]:
    """Ids of both rankings with fused scores in 0 ... 1, best first; ties by id. A fused score is `weight` times the
    BM25 score, relative to the query's best (at least `full`), plus `1 - weight` times the cosine, above `floor`
    (Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", 2023). An id without a cosine gets
    the lowest one. If one ranking is empty, the other alone counts."""
    if not words or not near:
        weight = 1.0 if words else 0.0
    best = max([_LEAST, full, *words.values()])
    last = min(near.values(), default=0.0)
    scores = {
        identifier: weight * words.get(identifier, 0.0) / best
        + (1 - weight) * max(0.0, (near.get(identifier, last) - floor) / (1 - floor))
        for identifier in {**near, **words}
    }
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Key]]) -> list[tuple[Key, float]]:
    """Ids of all rankings, best first, with the sum of 1 / (60 + rank) over those that hold it (Cormack, Clarke and
    Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods", 2009). Ties by id."""
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, identifier in enumerate(dict.fromkeys(ranking), 1):
            scores[identifier] = scores.get(identifier, 0.0) + 1 / (_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
