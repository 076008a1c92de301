"""What is asked of files and of models: options for Python calls, and the requests of the verbs, which add what is
asked about."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge.apps.collection.filters import Conditions, Filters
from edge.apps.verbs.options import RequestOptions, metadata, option
from edge.public_calls import checked_arguments

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST = 10_000

POOL = 60
"""Fused candidates that a search reranks."""

READ = 6
"""Passages that are judged and quoted from. Of 71 paraphrased questions 92 % have their answer in the first six, and
82 % in the first four."""

GIVEN = 4
"""Passages that a language model is given. Each delays the first word of the answer."""


_WHERE = metadata(
    "Only files that meet this; may be repeated: path:docs/**, type:pdf, type:python, after:2024-01-31, "
    "before:2024-07-01, larger:1MB, smaller:20kB; of mails also from:ann, to:bo@b.org, subject:cheese, thread:ID, and "
    "dates are their own. Several values of one key are alternatives.",
    "--filter", json="filters", metavar="KEY:VALUE",
)  # fmt: skip


@checked_arguments
@dataclass(frozen=True, slots=True)
class SearchOptions(RequestOptions):
    """How passages are searched for.

    Attributes:
        top_k: the most results.
        where: conditions on the files, such as `["type:pdf", "after:2024-01-01"]` (see `Filters`).
        min_score: leaves out hits whose `score` is lower.
        pool: number of candidates that are reranked; more if `top_k` needs more.
        rerank: False keeps the fused order and leaves the reranker closed.
        files: one result a file, its best passage, which names the other places that were found; results that most
            probably do not answer are left out beside better ones. What people see; programs get passages.
        brief: JSON answers hold places and the lines that answer (see `edge.apps.collection.hits`).
        max_tokens: the most tokens of the passages of all results with their contexts, as `most_tokens` bounds them,
            and of the whole answer if it is `brief`. The best results that fit are kept.
    """

    top_k: int = option(10, "How many results.", "-n", "--top-k", what="the number of results", least=1, most=MOST)
    where: Conditions = field(default=None, metadata=_WHERE)
    min_score: float = option(
        0.0, "Leave out results of a lower score (0 ... 1).", "--min-score", what="the least score", least=0, most=1
    )
    pool: int = option(
        POOL, "How many candidates the reranker judges; more if the results need more.", "--pool",
        what="the number of candidates to rerank", least=1, most=MOST,
    )  # fmt: skip
    rerank: bool = option(True, "Keep the fused order of words and vectors; quicker, less exact.", "--no-rerank")
    files: bool = option(
        False, "One result a file, with its other places, and without results below .02 beside better ones; or all "
        "passages. Text and Markdown list files if not told otherwise, other formats passages.", "--files/--passages",
    )  # fmt: skip
    brief: bool = option(
        False, "JSON of places and the lines that answer alone: at most 2,500 characters for eight results.",
        "--brief",
    )  # fmt: skip
    max_tokens: int | None = option(
        None, "The best results whose passages have at most so many tokens together, for any common tokenizer; of a "
        "brief answer all that is sent.", "--max-tokens", what="the number of tokens", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        RequestOptions.__post_init__(self)
        object.__setattr__(self, "where", Filters.of(self.where))

    @property
    def filters(self) -> Filters:
        return Filters.of(self.where)

    @property
    def candidates(self) -> int:
        """Twice as many as results, because neighbours are merged, and at least `POOL` for scores that compare."""
        return max(POOL, self.judged) if self.rerank or self.files else 2 * self.top_k

    @property
    def judged(self) -> int:
        return max(self.pool, 2 * self.top_k)


def search_options(top_k: int | None, options: SearchOptions | None, named: Mapping[str, Any]) -> SearchOptions:
    return SearchOptions.of(options, **(named if top_k is None else {**named, "top_k": top_k}))


@checked_arguments
@dataclass(frozen=True, slots=True)
class AskOptions(RequestOptions):
    """How a question is answered.

    Attributes:
        passages: the most passages that are judged and given to the generator. None: `READ` passages are judged and
            quoted from, and a language model is given the best `GIVEN` of them.
        pool: candidates that the reranker reads, over all queries of a round; more if `passages` is more.
        min_relevance: the probability that the passages answer the question below which the answer is "not in the
            documents".
        rerank: False keeps the retrieval order, and then no question is refused.
        check: numbers and names of an answer that no passage holds are not shown as certain (see `grounding`).
        lookahead: fetch lists while the generator writes, and search ahead of one elsewhere. This changes times, never
            results.
        temperature, max_tokens, seed: sampling of answers. Intermediate texts are always written greedily.
        rounds: the most rounds, for the pipelines that have rounds.
        where: the files that may be searched.
        order_tolerance: passages whose relevance differs by at most this much may change places in the prompt, so that
            a passage with cached KV states comes first. 0 keeps the order. Another order may change a model's answer.
    """

    passages: int | None = option(
        None, f"Passages to answer from, at most; if not given, {READ} are judged and quoted from, and a language "
        f"model is given the best {GIVEN}.", "-n", "--passages", what="the number of passages", least=1, most=MOST,
    )  # fmt: skip
    pool: int = option(
        30, "How many candidates the reranker judges in a round; more if the passages are more.", "--pool",
        what="the pool", least=1, most=MOST,
    )  # fmt: skip
    min_relevance: float | None = option(
        None, "Lowest probability that the passages answer; below it they are not shown.", "--min-score",
        json="min_score", what="the least relevance", least=0, most=1,
    )  # fmt: skip
    rerank: bool = option(True, "Keep the retrieval order; then nothing is refused.", "--no-rerank")
    check: bool = option(
        True, "Show a language model's sentences even if no passage holds what they say.", "--no-check"
    )
    lookahead: bool = option(True, "Fetch lists and search only when the query is written.", "--no-lookahead")
    temperature: float = option(0.0, "0: the most probable answer.", "--temperature", what="the temperature", least=0)
    max_tokens: int = option(256, "Longest answer.", "--max-tokens", what="the length of an answer", least=1)
    seed: int = option(0, "The same seed gives the same answer.", "--seed", what="the seed", least=0, most=2**32 - 2)
    rounds: int = option(
        3, "The most rounds, for pipelines that have rounds.", "--rounds", what="the number of rounds", least=1
    )
    where: Conditions = field(default=None, metadata=_WHERE)
    order_tolerance: float = option(
        0.0, "Passages whose relevance differs by at most so much may change places, so that KV states are "
        "reused; 0 keeps the order.", "--order-tolerance", what="the tolerance of the order", least=0, most=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        RequestOptions.__post_init__(self)
        object.__setattr__(self, "where", Filters.of(self.where))
        object.__setattr__(self, "pool", max(self.pool, self.passages or 1))

    @property
    def filters(self) -> Filters:
        return Filters.of(self.where)

    @property
    def read(self) -> int:
        return min(READ, self.pool) if self.passages is None else self.passages

    def given(self, *, writes: bool) -> int:
        """`writes` tells a language model from a generator that quotes."""
        return min(GIVEN, self.read) if self.passages is None and writes else self.read


@dataclass(frozen=True, slots=True)
class Search(SearchOptions):
    query: str = option("", "What is searched for.")
    here: str = option("", "The folder of the project that is brought up to date first.")
    collections: Mapping[str, str] | None = option(None, "The directories of the collections, by name.")


@dataclass(frozen=True, slots=True)
class Ask(AskOptions):
    question: str = option("", "What is asked.")
    collections: Mapping[str, str] | None = option(None, "The directories of the collections, by name.")
    pipeline: str = option("plain", "How the answer comes about.")


@dataclass(frozen=True, slots=True)
class Rerank(RequestOptions):
    """Texts to rank by how well they answer `query`. Without `mode` and `threshold` the settings decide."""

    query: str = option("", "What the texts are judged by.")
    texts: Sequence[str] = option((), "The texts.")
    top_k: int | None = option(
        None, "How many results (all if not given).", "-k", "--top-k", what="the number of results", least=1
    )
    model: str | None = option(None, "Reranker: a known name or the path of a packed model.", "--model")
    threshold: str | None = option(None, "Dispersion at which pruning starts: auto, inf, or a number.", "--threshold")
    mode: str | None = option(
        None, "ranked: full depth's order; top-k: the best set, faster.", "--mode", choices=("ranked", "top-k")
    )
    retrieved: bool = option(False, "Texts come in a retriever's order, best first: blend it in.", "--retrieved")
    explain: bool = option(False, "Show scores and decisions layer by layer.", "--explain")


@dataclass(frozen=True, slots=True)
class Embed(RequestOptions):
    texts: Sequence[str] = option((), "The texts.")
    model: str | None = option(None, "Embedder: a known name or the path of a packed model.", "--model")
    query: bool = option(False, "The texts are questions (models trained with an instruction get it).", "--query")


def vectors_of(found: Mapping[str, Any], count: int) -> npt.NDArray[np.float32]:
    """[n, dim]; a server sends them as base64."""
    import numpy as np

    vectors = found["vectors"]
    if isinstance(vectors, str):
        vectors = np.frombuffer(base64.b64decode(vectors), "<f4").reshape(count, -1).astype(np.float32)
    return vectors  # type: ignore[no-any-return]
