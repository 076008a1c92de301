"""Fusion of several rankings into one, by scores if they are BM25 and cosine, otherwise by ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

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
