"""A collection as pipelines see it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.apps.assistant.base import Ahead, Vectors
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.searching import Searcher
from edge.budget import MemoryBudget
from edge.ivf.base import Found
from edge.ivf.index import VectorIndex
from edge.lookahead import Lookahead
from edge.trace import Trace


class CollectionLibrary:
    """The stages of a collection's search, one by one (`base.Library`)."""

    def __init__(self, collection: Collection, *, working: int = 0) -> None:
        """
        Args:
            working: bytes to have free before a model runs. An engine lays its work out in what is free and does not
                ask others' caches to give way.
        """
        self._collection = collection
        self._working = working
        self._searcher = Searcher(collection.database, Catalog(), collection.budget, collection.trace)

    @property
    def budget(self) -> MemoryBudget:
        return self._collection.budget

    @property
    def trace(self) -> Trace:
        return self._collection.trace

    @property
    def nlist(self) -> int:
        index = self._collection.vectors
        return 1 if index is None else max(1, index.status(self._collection.database.connection()).lists)

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
        nprobe: int | None = None,
        window: Ahead | None = None,
    ) -> list[Hit]:
        index = self._collection.vectors
        probing = None if index is None else _Probing(index, nprobe, window if isinstance(window, Lookahead) else None)
        return self._searcher.candidates(query, vector, probing, k, where=where or Filters())

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        self._make_room()
        # Twice as many, because neighbours become one passage.
        return merge(self._collection.rerank(query, hits, 2 * top_k), top_k)

    def lookahead(self, queries: Vectors, *, seconds: float | None = None) -> Ahead | None:
        return self._collection.lookahead(queries, seconds=seconds)

    def _make_room(self) -> None:
        self.budget.reserve("retrieval", self._working).release()


@dataclass(frozen=True, slots=True)
class _Probing:
    """The index, searched in so many lists after a lookahead."""

    index: VectorIndex
    nprobe: int | None
    window: Lookahead | None

    def search(
        self, db: sqlite3.Connection, queries: Vectors, k: int, *, allowed: npt.NDArray[np.int64] | None = None
    ) -> Found:
        return self.index.search(db, queries, k, nprobe=self.nprobe, allowed=allowed, window=self.window)
