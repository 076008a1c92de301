"""The order of equally relevant documents: an order whose beginning is cached costs less.

The order of documents changes a model's answer. So documents change places only within the caller's tolerance: with no
tolerance, only documents of exactly the same relevance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from edge.errors import InputError


def cached_first(
    scores: Sequence[float], cached: Callable[[Sequence[int]], int | None], *, tolerance: float = 0.0
) -> list[int]:
    """Numbers of the documents in the order for the prompt.

    Documents are grouped by about equal relevance, and the groups keep their order. Among the orders that this allows,
    the function takes one with the longest cached beginning. The remaining documents keep their places.

    Args:
        scores: relevance of each document, descending or equal.
        cached: returns the number of tokens of a prompt that begins with these documents in this order, if all their
            states are cached, else None.
        tolerance: a document belongs to a group if its score is at most this much below that of the group's first.

    Raises:
        InputError: the scores ascend.
    """
    if any(a < b for a, b in pairwise(scores)):
        raise InputError(f"{len(scores)} documents, best first, need scores that do not ascend")
    groups = _groups(scores, tolerance)
    best: list[int] = []
    longest = 0

    def extend(order: list[int], tokens: int) -> None:
        """Extends the order in every allowed way as long as its states are cached."""
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
    """The documents that may follow those in `order`: the unused ones of the first group that is not used up."""
    for group in groups:
        left = [index for index in group if index not in order]
        if left:
            return left
    return []
