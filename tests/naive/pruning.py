"""Progressive cluster pruning with plain sets, given the clusters."""

from __future__ import annotations

from collections.abc import Mapping


def prune(
    scores: Mapping[int, float], cluster: Mapping[int, int], remaining: int, *, ranked: bool
) -> tuple[set[int], set[int], set[int]]:
    """(selected, dropped, deferred) of the active candidates, by the text of GRATING section 4.1."""
    by_rank = sorted(scores, key=lambda i: (-scores[i], i))
    boundary = cluster[by_rank[min(remaining, len(by_rank)) - 1]]
    above = {i for i in scores if cluster[i] < boundary}
    inside = {i for i in scores if cluster[i] == boundary}
    below = {i for i in scores if cluster[i] > boundary}
    if ranked:
        return set(), below, above | inside
    if len(above | inside) == remaining:
        return above | inside, below, set()
    return above, below, inside
