"""Hits in the reranker's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.models import Models
from edge.runtimes.reranker import Ranked


def reranked(models: Models, query: str, hits: Sequence[Hit], top_k: int | None) -> list[Hit]:
    """`hits`, given in retrieval order, by the reranker's judgement blended with their scores (with the order alone if
    a hit has none): as many as `merge` needs for the best `top_k` results, all of them if None.

    Candidates that the reranker dropped are judged to the end only where too many of the others are neighbours, which
    become one result.
    """
    if not hits:
        return []
    scores = [hit.stages.fused_score for hit in hits]
    known = [score for score in scores if score is not None]
    wanted = min(top_k or len(hits), len(hits))

    def enough(found: Sequence[Ranked]) -> bool:
        return len(merge([hits[result.index] for result in found], wanted)) == wanted

    passages = [hit.passage for hit in hits]
    found = models.rank(query, passages, wanted, known if len(known) == len(hits) else True, enough)
    return [
        replace(
            hits[result.index],
            score=result.score,
            stages=replace(hits[result.index].stages, relevance=result.relevance),
        )
        for result in found
    ]
