"""`CollectionLibrary`: the interface of a collection to the pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
from edge.cache.lookahead import Lookahead
from edge.ivf.base import Found
from edge.ivf.index import VectorIndex
from edge.ivf.storage.connection import Connection
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
        queries: Sequence[str],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Ahead | None = None,
    ) -> list[list[Hit]]:
        index = self._collection.vectors
        filters = where or Filters()
        if index is None:
            return [
                self._searcher.candidates(query, vector, None, k, where=filters)
                for query, vector in zip(queries, vectors, strict=True)
            ]
        started = time.perf_counter()
        left = None if seconds is None else max(0.0, seconds - self._beside.upper)
        batch = _Batch(index, vectors, left, window if isinstance(window, Lookahead) else None)
        with self._collection.database.read():  # all queries see one state
            found = [
                self._searcher.candidates(query, vector, batch.of(place), k, where=filters)
                for place, (query, vector) in enumerate(zip(queries, vectors, strict=True))
            ]
        self._beside.add(time.perf_counter() - started - batch.took)
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


@dataclass(slots=True)
class _Batch:
    """The queries of one retrieval. The first query that reaches the index searches it for all of them.

    Attributes:
        index: the vector index.
        vectors: the queries' vectors, [n, dim].
        seconds: the time that the search may take; None for as long as the recall target needs.
        window: a lookahead for this search, which ends when the search begins.
        took: seconds spent in the index so far.
    """

    index: VectorIndex
    vectors: Vectors
    seconds: float | None
    window: Lookahead | None
    took: float = 0.0
    _found: dict[int, Found] = field(default_factory=dict)

    def of(self, place: int) -> _Probing:
        """The index, seen from query number `place`."""
        return _Probing(self, place)

    def search(self, db: Connection, place: int, k: int, allowed: npt.NDArray[np.int64] | None) -> Found:
        """The `k` nearest rows to one of the vectors. The cost of the common search is counted for its first query."""
        started = time.perf_counter()
        new = k not in self._found
        if new and not self._found:
            self._found[k] = self.index.search(
                db, self.vectors, k, seconds=self.seconds, allowed=allowed, window=self.window
            )
        elif new:  # a query with too many near-duplicate results asks for more rows
            return self._timed(
                started,
                self.index.search(
                    db, self.vectors[place : place + 1], k, seconds=self.seconds, allowed=allowed, window=self.window
                ),
            )
        found = self._found[k]
        mine = replace(found, ids=found.ids[place : place + 1], scores=found.scores[place : place + 1])
        return self._timed(started, mine if new else replace(mine, lists_read=0, bytes_read=0, hits=0))

    def _timed(self, started: float, found: Found) -> Found:
        self.took += time.perf_counter() - started
        return found


@dataclass(frozen=True, slots=True)
class _Probing:
    """The index, restricted to one query of a batch."""

    batch: _Batch
    place: int

    def search(
        self, db: Connection, queries: Vectors, k: int, *, allowed: npt.NDArray[np.int64] | None = None
    ) -> Found:
        return self.batch.search(db, self.place, k, allowed)
