"""`CollectionLibrary`: the interface of a collection to the pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edge.apps.assistant.base import Ahead, Vectors
from edge.apps.assistant.evidence import UnitJudge
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.searching import Within, candidates
from edge.budget import MemoryBudget
from edge.cache.lookahead import Lookahead
from edge.scheduling.predictor import RunningMean
from edge.trace import Trace


class CollectionLibrary:
    """Gives pipelines the stages of a collection's search as separate calls (see `base.Library`)."""

    def __init__(self, collection: Collection, *, working: int = 0, judge: UnitJudge | None = None) -> None:
        """
        Args:
            judge: judges units of passages. The sentence picker shares it, so that each unit is judged once.
            working: bytes to free before a model runs. An engine plans its work for the memory that is free, and does
                not ask other caches to shrink.
        """
        self._collection = collection
        self._working = working
        self._judge = judge or UnitJudge(collection)
        self._beside = RunningMean()
        """Seconds that a search takes outside the vector index: full text, fusion, reading the passages."""

    @property
    def budget(self) -> MemoryBudget:
        return self._collection.budget

    @property
    def trace(self) -> Trace:
        return self._collection.trace

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        self._make_room()
        return self._collection.embed_queries(queries)

    def candidates(
        self,
        queries: Sequence[str],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Ahead | None = None,
    ) -> list[list[Hit]]:
        started = time.perf_counter()
        left = None if seconds is None else max(0.0, seconds - self._beside.upper)
        within = Within(left, window if isinstance(window, Lookahead) else None)
        sources = {"": self._collection.source}
        found = candidates(sources, queries, [list(vectors)], k, where=where or Filters(), within=within)
        self._beside.add(time.perf_counter() - started - within.took)
        return found

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        self._make_room()
        return merge(self._collection.rerank(query, hits, top_k), top_k)

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        self._make_room()
        return self._judge.probability(query, hits)

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Ahead | None:
        return self._collection.lookahead(queries, seconds=seconds, lost=lost)

    def _make_room(self) -> None:
        self.budget.reserve("retrieval", self._working).release()
