"""Orders hits by the reranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.models import Models
from edge.runtimes.reranker import Ranked
from edge.runtimes.scoring import Watch

_SPARE = 1
"""Additional results that the reranker is asked for. Its best hits may contain more neighbours than retrieval's best,
and neighbours are merged."""


def reranked(
    models: Models, query: str, hits: Sequence[Hit], top_k: int | None, watch: Watch | None = None
) -> list[Hit]:
    """Orders `hits`, which must be in retrieval order, by the reranker's probability blended with their retrieval
    scores, or with their ranks if a hit has no score. Returns as many hits as `merge` needs for the best `top_k`
    results, or all if `top_k` is None.

    Neighbours are merged into one result, so more hits are ranked than results are wanted. Candidates that the reranker
    dropped early are judged completely only if the results are still too few.

    Args:
        watch: receives the ranking after each layer; its numbers are indices of `hits`.
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
    found = models.rank(query, passages, asked, known if len(known) == len(hits) else True, enough, watch)
    return [
        replace(
            hits[result.index],
            score=result.score,
            stages=replace(hits[result.index].stages, relevance=result.relevance),
        )
        for result in found
    ]


def needed(hits: Sequence[Hit], wanted: int) -> int:
    """How many hits the reranker should return, so that merging leaves `wanted` results: as many as retrieval order
    needs for `_SPARE` more results. A second pass over dropped candidates would cost more."""
    if len(merge(hits, len(hits))) == len(hits):
        return wanted
    spare = min(wanted + _SPARE, len(hits))
    count = wanted
    while count < len(hits) and len(merge(hits[:count], spare)) < spare:
        count += 1
    return count
