"""`CollectionLibrary`: the part of a collection that the pipelines use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edge.apps.assistant.base import Vectors
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
    """Gives pipelines the stages of a collection's search as separate calls. Thread-safe; every call sees one committed
    state of the collection."""

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
        """The vectors of questions, [n, dim] float32, of unit length."""
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
        window: Lookahead | None = None,
    ) -> list[list[Hit]]:
        """The best `k` passages for each query, best first, before reranking. All queries are one search of the index,
        so that a list that several of them probe is read once.

        Args:
            vectors: [n, dim], one for each query.
            seconds: the time that all queries may take together. If given, as many lists are searched as fit into it,
                and the recall target is not used.
            window: the lookahead made for this search; it ends now.
        """
        started = time.perf_counter()
        left = None if seconds is None else max(0.0, seconds - self._beside.upper)
        within = Within(left, window)
        sources = {"": self._collection.source}
        found = candidates(sources, queries, [list(vectors)], k, where=where or Filters(), within=within)
        self._beside.add(time.perf_counter() - started - within.took)
        return found

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        """The best of `hits`, which are given in retrieval order. The result has `stages.relevance` set."""
        self._make_room()
        return merge(self._collection.rerank(query, hits, top_k), top_k)

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        """The probability that `hits` answer a question, and the probability that is enough. None if no probability
        model was fitted for the models in use; then the reranker's relevance of each hit decides."""
        self._make_room()
        return self._judge.probability(query, hits)

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Lookahead | None:
        """Starts fetching the clusters nearest to `queries` [n, dim]. None if there is nothing to fetch.

        Args:
            seconds: the time to fetch for. If not given, fetching goes on until memory has no more room.
            lost: called with the seconds that later searches wait for clusters which these clusters displaced.
        """
        return self._collection.lookahead(queries, seconds=seconds, lost=lost)

    def _make_room(self) -> None:
        self.budget.reserve("retrieval", self._working).release()
