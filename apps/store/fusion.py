"""Fusion of several rankings into one, by scores if they are BM25 and cosine, otherwise by ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", int, tuple[int, int], tuple[str, int])
"""A number of a text, or the number or name of a source with the number of a text in it."""

_LEAST = 1.0
"""The smallest divisor for BM25 scores. A best score below it comes from words that most texts hold, so it is not
scaled up to 1."""

FULL_MATCH = 0.7
"""The share of `Statistics.whole_score` from which a BM25 score counts in full, where that is asked for. In a store of
a few short facts even "of" is a rare word. Without this share, a fact that has only "of" in common with a question gets
all the weight of BM25, because no fact has a better score. So does a text in the question's language, if the answer is
in another one."""

_CONSTANT = 60
"""Damps the first ranks in reciprocal rank fusion."""


def convex_combination(
    words: Mapping[Key, float],
    near: Mapping[Key, float],
    weight: float,
    *,
    full: float = 0.0,
    floor: float = 0.0,
) -> list[tuple[Key, float]]:
    """Ids of both rankings with their fused scores in 0 ... 1, best first; ties in the order of their ids.

    A fused score is `weight` times the BM25 score, relative to the query's best, plus `1 - weight` times the cosine
    (Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", 2023). If one ranking is empty, the
    scores come from the other alone.

    Args:
        words: BM25 scores by id; an id without a score counts as 0.
        near: cosines by id; an id without a cosine gets the lowest one in `near`.
        full: the least BM25 score that is scaled to 1. Without it the query's best is scaled to 1, even if it matches
            only one insignificant word of the query.
        floor: the cosine that counts as 0. Some embedders give every two texts a cosine of 0.7 and more. Without it
            the differences of their cosines would weigh little beside those of BM25.
    """
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
    """Ids of all rankings, best first, with their fused scores; ties in the order of their ids. If a ranking repeats an
    id, its first place counts.

    An id's score is the sum of 1 / (60 + rank) over the rankings that hold it, ranks from 1 (Cormack, Clarke and
    Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods", 2009).
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, identifier in enumerate(dict.fromkeys(ranking), 1):
            scores[identifier] = scores.get(identifier, 0.0) + 1 / (_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
