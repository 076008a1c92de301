"""The interfaces of a pipeline: the collection it reads, and the exceptions that end it early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.budget import MemoryBudget
from edge.cache.lookahead import LookaheadOutcome
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

MIN_RELEVANCE = 0.1
"""The relevance below which a passage does not answer a question. It applies to rerankers without a fitted probability
model (see `evidence`), where the reranker's probability alone decides."""


class Ahead(Protocol):
    """Clusters that are being fetched (`edge.cache.lookahead.Lookahead`)."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that may be fetched."""

    def supersede(self, earlier: Any, *, follows: bool) -> None:
        """Ends an earlier prediction for the same search. `follows` says that this prediction refines the earlier
        one."""

    def cancel(self) -> Sequence[LookaheadOutcome]:
        """Stops fetching and releases the protection of the clusters that have arrived. Calling it twice is harmless.

        Returns:
            The outcomes of this prediction and of the predictions it superseded, oldest first; empty if no search
            came.
        """


class Library(Protocol):
    """The part of a collection (`edge.apps.collection.Collection`) that a pipeline uses.

    Thread-safe. Every call sees one committed state of the collection, even while another process writes to it.
    """

    @property
    def budget(self) -> MemoryBudget: ...

    @property
    def trace(self) -> Trace: ...

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """The vectors of questions, [n, dim] float32, of unit length."""

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
        """The best `k` passages for each query, best first, by fusing full-text and vector search. All queries are
        one search of the index, so that a list that several of them probe is read once.

        Args:
            vectors: [n, dim], one for each query.
            seconds: the time that all queries may take together. If given, as many lists are searched as fit into it,
                and the recall target is not used.
            window: the lookahead made for this search; it ends now.
        """

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        """The best of `hits`, which are given in retrieval order. The result has `stages.relevance` set."""

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        """The probability that `hits` answer a question, and the probability that is enough. None if no probability
        model was fitted for the models in use; then the reranker's relevance of each hit decides."""

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Ahead | None:
        """Starts fetching the clusters nearest to `queries` [n, dim]. None if there is nothing to fetch.

        Args:
            seconds: the time to fetch for. If not given, fetching goes on until memory has no more room.
            lost: called with the seconds that later searches wait for clusters which these clusters displaced.
        """


class Cancelled(Exception):
    """The question was withdrawn while it was being answered. The text written so far is kept."""


class NotInDocuments(Exception):
    """No passage answers the question. This is not an error: the answer is that the documents do not say."""
