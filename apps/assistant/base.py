"""The interfaces of a pipeline: the collection it reads, its options, and the exceptions that end it early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import MOST
from edge.budget import MemoryBudget
from edge.cache.lookahead import LookaheadOutcome
from edge.errors import InputError
from edge.public_calls import checked_arguments
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

MIN_RELEVANCE = 0.1
"""The relevance below which a passage does not answer a question. It applies to rerankers without a fitted probability
model (see `evidence`), where the reranker's probability alone decides. The benchmark `floor` measures its errors."""


READ = 6
"""Number of passages that are judged for an answer and quoted from. Of 71 paraphrased questions of the
benchmark `answers`, 92 % have their answer in the first six passages and 82 % in the first four."""

GIVEN = 4
"""Number of passages that a language model is given. Reading each of them delays the first word of the answer."""


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


@checked_arguments
@dataclass(frozen=True, slots=True)
class AskOptions:
    """How a question is answered.

    Attributes:
        passages: the most passages that are judged and given to the generator. None: `READ` passages are judged and
            quoted from, and a language model is given the best `GIVEN` of them.
        pool: candidates that the reranker reads, over all queries of a round.
        min_relevance: the probability that the passages answer the question below which the answer is "not in the
            documents". None: the threshold fitted for the models. Without a fitted threshold this is the relevance
            that each passage needs, `MIN_RELEVANCE` if None.
        rerank: False keeps the retrieval order, and then no question is refused.
        check: numbers and names of an answer that no passage holds are not shown as certain (see `grounding`).
        lookahead: fetch clusters while the generator writes. This changes times, never results.
        temperature, max_tokens, seed: sampling of answers. Intermediate texts are always written greedily.
        rounds: the most rounds, for the pipelines that have rounds.
        where: the files that may be searched.
        floor: the former name of `min_relevance`.
        order_tolerance: passages whose relevance differs by at most this much may change places in the prompt, so that
            a passage with cached KV states comes first. 0 keeps the order. Another order may change a model's answer.
    """

    passages: int | None = None
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
            (self.passages is None or self.passages >= 1, "the number of passages must be at least 1", self.passages),
            (
                self.pool >= (self.passages or 1),
                f"the pool must hold at least {self.passages or 1} passages",
                self.pool,
            ),
            (self.pool <= MOST, f"the pool holds at most {MOST:,} passages", self.pool),
            (0 <= (self.min_relevance or 0) <= 1, "the least relevance lies between 0 and 1", self.min_relevance),
            (0 <= self.order_tolerance <= 1, "the tolerance of the order lies between 0 and 1", self.order_tolerance),
            (self.temperature >= 0, "the temperature must be at least 0", self.temperature),
            (self.max_tokens >= 1, "an answer needs at least 1 token", self.max_tokens),
            (self.rounds >= 1, "there must be at least 1 round", self.rounds),
        )
        for fine, rule, value in checks:
            if not fine:
                raise InputError(f"{rule}, not {value}")

    @property
    def read(self) -> int:
        """The number of passages that are judged."""
        return min(READ, self.pool) if self.passages is None else self.passages

    def given(self, *, writes: bool) -> int:
        """The number of passages that a generator is given; `writes` tells a language model from one that quotes."""
        return min(GIVEN, self.read) if self.passages is None and writes else self.read


class Cancelled(Exception):
    """The question was withdrawn while it was being answered. The text written so far is kept."""


class NotInDocuments(Exception):
    """No passage answers the question. This is not an error: the answer is that the documents do not say."""
