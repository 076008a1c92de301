"""Passages of several retrievals as one list for the generator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from edge.apps.collection.hits import Hit
from edge.apps.store.fusion import reciprocal_rank_fusion


def fused(pools: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Candidates of several queries in one order."""
    if len(pools) == 1:
        return list(pools[0])
    hits = {hit.id: hit for pool in pools for hit in pool}
    return [hits[identifier] for identifier, _ in reciprocal_rank_fusion([[hit.id for hit in pool] for pool in pools])]


def gathered(most: int, *sets: Sequence[Hit]) -> list[Hit]:
    """The `most` relevant of several sets of passages. Those of earlier sets stay where they were and new ones follow,
    so that a prompt begins as the one before it and its KV states are reused."""
    seen: dict[int, Hit] = {}
    for hit in (hit for hits in sets for hit in hits):
        if hit.id not in seen or _relevance(hit) > _relevance(seen[hit.id]):
            seen[hit.id] = hit
    kept = sorted(seen.values(), key=_relevance, reverse=True)[:most]
    return [hit for hit in seen.values() if hit in kept]


def dealt(most: int, sets: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The best of each of several sets of passages, then the second best of each, and so on, `most` in all: parts of a
    question must not crowd each other out."""
    turns = (hit for turn in zip_longest(*sets) for hit in turn if hit is not None)
    return list({hit.id: hit for hit in turns}.values())[:most]


def _relevance(hit: Hit) -> float:
    return hit.score if hit.stages.relevance is None else hit.stages.relevance
