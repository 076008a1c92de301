"""A collection as pipelines see it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.apps.assistant.base import Ahead, Vectors
from edge.apps.assistant.evidence import UnitJudge
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.searching import Searcher
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.expectation import Expected
from edge.ivf.base import Found
from edge.ivf.index import VectorIndex
from edge.lookahead import Lookahead
from edge.trace import Trace


class CollectionLibrary:
    """The stages of a collection's search, one by one (`base.Library`)."""

    def __init__(self, collection: Collection, *, working: int = 0, judge: UnitJudge | None = None) -> None:
        """
        Args:
            judge: judges units of passages; shared with what picks sentences, so that each is judged once.
            working: bytes to have free before a model runs. An engine lays its work out in what is free and does not
                ask others' caches to give way.
        """
        self._collection = collection
        self._working = working
        self._judge = judge or UnitJudge(collection)
        self._beside = Expected()
        """Seconds of a search that are not the vector index's: full text, fusion, reading the passages."""
        self._searcher = Searcher(collection.database, Catalog(), collection.budget, collection.trace)

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
        query: str,
        vector: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Ahead | None = None,
    ) -> list[Hit]:
        index = self._collection.vectors
        if index is None:
            return self._searcher.candidates(query, vector, None, k, where=where or Filters())
        started = time.perf_counter()
        left = None if seconds is None else max(0.0, seconds - self._beside.upper)
        probing = _Probing(index, left, window if isinstance(window, Lookahead) else None)
        found = self._searcher.candidates(query, vector, probing, k, where=where or Filters())
        self._beside.add(time.perf_counter() - started - probing.took)
        return found

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        self._make_room()
        return merge(self._collection.rerank(query, hits, top_k), top_k)

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        self._make_room()
        return self._judge.probability(query, hits)

    def lookahead(self, queries: Vectors, *, seconds: float | None = None) -> Ahead | None:
        return self._collection.lookahead(queries, seconds=seconds)

    def _make_room(self) -> None:
        self.budget.reserve("retrieval", self._working).release()


@dataclass(slots=True)
class _Probing:
    """The index, searched within so many seconds after a lookahead; `took` is what it took."""

    index: VectorIndex
    seconds: float | None
    window: Lookahead | None
    took: float = 0.0

    def search(
        self, db: Connection, queries: Vectors, k: int, *, allowed: npt.NDArray[np.int64] | None = None
    ) -> Found:
        started = time.perf_counter()
        found = self.index.search(db, queries, k, seconds=self.seconds, allowed=allowed, window=self.window)
        self.took = time.perf_counter() - started
        return found
