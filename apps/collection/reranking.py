"""Hits in the reranker's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.models import Models
from edge.runtimes.reranker import Ranked

_SPARE = 1
"""Results for which hits are asked beyond those that are wanted: the reranker's first hits may hold more neighbours
than retrieval's."""


def reranked(models: Models, query: str, hits: Sequence[Hit], top_k: int | None) -> list[Hit]:
    """`hits`, given in retrieval order, by the reranker's judgement blended with their scores (with the order alone if
    a hit has none): as many as `merge` needs for the best `top_k` results, all of them if None.

    Neighbours become one result, so more hits are asked for than results. Candidates that the reranker dropped are
    judged to the end only where that was still too few.
    """
    if not hits:
        return []
    scores = [hit.stages.fused_score for hit in hits]
    known = [score for score in scores if score is not None]
    wanted = min(top_k or len(hits), len(hits))

    def enough(found: Sequence[Ranked]) -> bool:
        return len(merge([hits[result.index] for result in found], wanted)) == wanted

    passages = [hit.passage for hit in hits]
    asked = needed(hits, wanted)
    found = models.rank(query, passages, asked, known if len(known) == len(hits) else True, enough)
    return [
        replace(
            hits[result.index],
            score=result.score,
            stages=replace(hits[result.index].stages, relevance=result.relevance),
        )
        for result in found
    ]


def needed(hits: Sequence[Hit], wanted: int) -> int:
    """How many hits the reranker is asked for, so that merging leaves `wanted` results: as many as it takes in
    retrieval order to find `_SPARE` more results than that. Judging the dropped in a second pass costs more."""
    if len(merge(hits, len(hits))) == len(hits):
        return wanted
    spare = min(wanted + _SPARE, len(hits))
    count = wanted
    while count < len(hits) and len(merge(hits[:count], spare)) < spare:
        count += 1
    return count
