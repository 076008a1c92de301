"""The order of equally relevant documents: one whose beginning is cached costs less.

Order changes what a model answers, so documents change places only as far as the caller says that it does not matter:
with no tolerance, only documents of exactly the same relevance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from edge.errors import InputError


def cached_first(
    scores: Sequence[float], cached: Callable[[Sequence[int]], int | None], *, tolerance: float = 0.0
) -> list[int]:
    """Numbers of documents in the order to put them in the prompt.

    Documents stay in groups of about equal relevance, and groups in their order; among the orders that this allows, one
    with the longest beginning whose states are cached is taken, and what follows keeps its place.

    Args:
        scores: relevance of each document, not ascending.
        cached: tokens of a prompt that begins with these documents in this order, if the states of all of them are
            cached; else None.
        tolerance: a document is as good as the first of its group if its score is at most so much lower.

    Raises:
        InputError: the scores ascend.
    """
    if any(a < b for a, b in pairwise(scores)):
        raise InputError(f"{len(scores)} documents, best first, need scores that do not ascend")
    groups = _groups(scores, tolerance)
    best: list[int] = []
    longest = 0

    def extend(order: list[int], tokens: int) -> None:
        """Follows every allowed order as long as it is cached."""
        nonlocal best, longest
        if tokens > longest:
            best, longest = order, tokens
        for index in _next(groups, order):
            found = cached([*order, index])
            if found is not None:
                extend([*order, index], found)

    extend([], 0)
    rest = (index for group in groups for index in group if index not in best)
    return [*best, *rest]


def _groups(scores: Sequence[float], tolerance: float) -> list[list[int]]:
    groups: list[list[int]] = []
    for index, score in enumerate(scores):
        if groups and scores[groups[-1][0]] - score <= tolerance:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _next(groups: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The documents that may come after those in `order`: what is left of the first group that is not used up."""
    for group in groups:
        left = [index for index in group if index not in order]
        if left:
            return left
    return []
