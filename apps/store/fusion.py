"""Fusing several rankings into one."""

from __future__ import annotations

from collections.abc import Sequence


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[int]], *, constant: int = 60, weights: Sequence[float] | None = None
) -> list[tuple[int, float]]:
    """Ids of all rankings with their fused scores, best first; ties in the order of their ids.

    An id's score is the sum of `weight / (constant + rank)` over the rankings that hold it, ranks from 1 (Cormack,
    Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods", 2009).

    Args:
        rankings: ids, best first; an id that a ranking repeats counts where it comes first.
        weights: one for each ranking; all 1 if not given.
    """
    weights = [1.0] * len(rankings) if weights is None else weights
    scores: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, identifier in enumerate(dict.fromkeys(ranking), 1):
            scores[identifier] = scores.get(identifier, 0.0) + weight / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
