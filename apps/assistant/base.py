"""What a pipeline is made of: the collection it reads, the settings it keeps to, and how it ends early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.lookahead import Outcome
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

MIN_RELEVANCE = 0.1
"""Relevance below which a passage does not answer a question, for a reranker that nothing was fitted for (see
`evidence`): then its probability alone decides. `edge bench floor` measures what that costs."""


class Ahead(Protocol):
    """Clusters being fetched (`edge.lookahead.Lookahead`)."""

    @property
    def nbytes(self) -> int:
        """Bytes that may be fetched."""

    def supersede(self, earlier: Any, *, follows: bool) -> None:
        """Ends an earlier prediction for the same search; `follows` if this is the same one with more known."""

    def cancel(self) -> Sequence[Outcome]:
        """Fetches nothing more, and gives up what protects that which has arrived. Twice is harmless.

        Returns:
            The outcomes of this prediction and of those it superseded, the first one first; none if no search came.
        """


class Library(Protocol):
    """What a pipeline needs of a collection (`edge.apps.collection.Collection`). Thread-safe; every call sees one
    committed state of the collection, whatever is written meanwhile."""

    @property
    def budget(self) -> MemoryBudget: ...

    @property
    def trace(self) -> Trace: ...

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """Vectors of questions, [n, dim] float32, unit length."""

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
        """For each query the best `k` passages near its vector and with its words together, best first. All queries are
        one search of the index, so that a list that several of them probe is read once.

        Args:
            vectors: [n, dim], one for each query.
            seconds: all may take together; as many lists are searched as fit, instead of those the recall target asks
                for.
            window: a lookahead whose time is over now.
        """

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        """The best of `hits`, which come in retrieval order; with `stages.relevance`."""

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        """The probability that `hits` answer a question, and the one that is enough; None if nothing was fitted for the
        models in use, and the reranker's relevance of each decides."""

    def lookahead(self, queries: Vectors, *, seconds: float | None = None) -> Ahead | None:
        """Starts fetching the clusters nearest to `queries` [n, dim]: as much as arrives in `seconds`, as much as there
        is room for if that is not known. None if there is nothing to fetch."""


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How a question is answered.

    Attributes:
        passages: how many the generator is given at most.
        pool: candidates the reranker reads, over all queries of a round.
        min_relevance: probability that the passages answer the question, below which the answer is that the documents
            do not say; what was fitted for the models if None. For models that nothing was fitted for it is the
            relevance that a passage needs, `MIN_RELEVANCE` if None.
        rerank: off keeps the retrieval order, and then nothing is refused.
        check: numbers and names of an answer that no passage holds are not shown as certain (see `grounding`).
        lookahead: fetch clusters while the generator writes. Changes times, never results.
        temperature, max_tokens, seed: of answers; everything written on the way to one is greedy.
        rounds: most rounds of the pipelines that have rounds.
        where: the files that may be looked at.
        floor: what `min_relevance` was called before.
        order_tolerance: passages whose relevance differs by at most so much may change places in the prompt, so that
            one begins it whose KV states are there. 0 keeps the order: another one may change what a model answers.
    """

    passages: int = 4
    pool: int = 30
    min_relevance: float | None = None
    rerank: bool = True
    check: bool = True
    lookahead: bool = True
    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0
    rounds: int = 3
    where: Filters | None = field(default=None)
    floor: InitVar[float | None] = None
    order_tolerance: float = 0.0

    def __post_init__(self, floor: float | None) -> None:
        if floor is not None:
            object.__setattr__(self, "min_relevance", floor)
        checks: tuple[tuple[bool, str, Any], ...] = (
            (self.passages >= 1, "the number of passages must be at least 1", self.passages),
            (self.pool >= self.passages, f"the pool must hold at least the {self.passages} passages", self.pool),
            (0 <= (self.min_relevance or 0) <= 1, "the least relevance lies between 0 and 1", self.min_relevance),
            (0 <= self.order_tolerance <= 1, "the tolerance of the order lies between 0 and 1", self.order_tolerance),
            (self.temperature >= 0, "the temperature must be at least 0", self.temperature),
            (self.max_tokens >= 1, "an answer needs at least 1 token", self.max_tokens),
            (self.rounds >= 1, "there must be at least 1 round", self.rounds),
        )
        for fine, rule, value in checks:
            if not fine:
                raise InputError(f"{rule}, not {value}")


class Cancelled(Exception):
    """The question was withdrawn while it was being answered; what was written stands."""


class NotInDocuments(Exception):
    """No passage answers the question. Not an error: it is the answer."""
