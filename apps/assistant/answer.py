"""What an assistant hands back: the text, its citations, and how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edge.apps.assistant.citations import Citation
from edge.apps.assistant.grounding import Unsupported
from edge.apps.collection.hits import Hit

NOT_FOUND = "This is not in the documents."


@dataclass(frozen=True, slots=True)
class Round:
    """One retrieval: what was asked of the index and what came back.

    Attributes:
        queries: texts whose vectors were searched.
        question: what the passages were ranked by: what was asked, or the sentence that asks.
        passages: best first, those that count.
        below: how many of the ranked ones do not.
        best: how surely they answer the question, None without reranking or candidates.
        search_s, rerank_s: seconds from query to candidates, and from them to passages.
    """

    queries: tuple[str, ...]
    question: str
    passages: tuple[Hit, ...]
    below: int
    best: float | None
    search_s: float
    rerank_s: float


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """Figures of one answer; times in seconds, sizes in bytes.

    Attributes:
        pipeline, generator: which.
        question: what was answered, as it stands alone.
        seconds: from the question to the last character; `ttft_s` to the first.
        generate_s, embed_s, search_s, rerank_s: time in each kind of step.
        generations, rounds, queries: how many of each.
        prompt_tokens, cached_tokens, new_tokens: of all generations; cached ones had their KV states reused.
        dropped: passages that the context did not hold, counted for every generation they were left out of.
        best_relevance, min_relevance: how surely the passages answer the question, and what was needed; None without
            reranking.
        lists_probed, lists_ready, bytes_read: parts of IVF lists searched, those in memory or on their way when the
            search began, bytes that searches had to read.
        lists_ahead: parts of lists that lookahead fetched.
        stall_s, hidden_s: time that somebody waited for the disk, and time that it worked while nobody did.
        peak_resident, limit: anonymous memory of the process, and what it may be.
        placement: where a language model's weights are.
        interrupted: the answer was cut short.
    """

    pipeline: str = ""
    generator: str = ""
    question: str = ""
    seconds: float = 0.0
    ttft_s: float | None = None
    generate_s: float = 0.0
    embed_s: float = 0.0
    search_s: float = 0.0
    rerank_s: float = 0.0
    generations: int = 0
    rounds: int = 0
    queries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    dropped: int = 0
    best_relevance: float | None = None
    min_relevance: float | None = None
    lists_probed: int = 0
    lists_ready: int = 0
    bytes_read: int = 0
    lists_ahead: int = 0
    stall_s: float = 0.0
    hidden_s: float = 0.0
    peak_resident: int = 0
    limit: int = 0
    placement: str = ""
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it; `floor` is what `min_relevance` was called before."""
        return {**asdict(self), "floor": self.min_relevance}


_COUNTERS = {
    "generations": "assistant.generations", "generate_s": "assistant.generate_s", "embed_s": "assistant.embed_s",
    "search_s": "assistant.search_s", "rerank_s": "assistant.rerank_s", "rounds": "assistant.rounds",
    "queries": "assistant.queries", "prompt_tokens": "assistant.prompt_tokens",
    "cached_tokens": "assistant.cached_tokens", "new_tokens": "assistant.new_tokens", "dropped": "assistant.dropped",
    "bytes_read": "index.bytes_read", "lists_ready": "index.hits", "lists_ahead": "lists.ahead",
    "stall_s": "disk.stall_s", "hidden_s": "disk.hidden_s",
}  # fmt: skip
"""Where figures come from: counters of the trace."""


def measured(before: Mapping[str, float], after: Mapping[str, float]) -> AnswerStats:
    """The figures that a trace counted between two readings of its counters."""

    def grown(counter: str) -> float:
        return after.get(counter, 0) - before.get(counter, 0)

    stats = AnswerStats(lists_probed=int(grown("index.hits") + grown("index.lists_read")))
    kinds = {name: type(getattr(stats, name)) for name in _COUNTERS}
    return replace(stats, **{name: kinds[name](grown(counter)) for name, counter in _COUNTERS.items()})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        text: with marks such as [1] that refer to `citations`.
        citations: in the order of their numbers. An answer that marks nothing names the passages it was given.
        stats: how it came about.
        found: False when the documents do not hold the answer; the text then says so.
        rounds: every retrieval, in order.
        unsupported: sentences that the generator wrote and no passage holds, with what is shown instead.
    """

    text: str
    citations: tuple[Citation, ...]
    stats: AnswerStats
    found: bool = True
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    unsupported: tuple[Unsupported, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "text": self.text,
            "citations": [citation.to_json() for citation in self.citations],
            "stats": {**self.stats.to_json(), "found": self.found},
            "unsupported": [asdict(found) for found in self.unsupported],
        }
