"""An assistant's answer: the text, its citations, and a record of the retrievals and figures behind it."""

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
    """One retrieval: the queries sent to the index, and the passages found.

    Attributes:
        queries: texts whose vectors were searched.
        question: the text that the passages were ranked by: the whole question, or its asking sentence.
        passages: the passages that were kept, best first.
        below: the number of ranked passages that were not kept.
        best: the probability that the passages answer the question; None without reranking or candidates.
        search_s, rerank_s: seconds from query to candidates, and from candidates to passages.
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
        pipeline, generator: the names of the pipeline and the generator.
        question: the question that was answered, in a form that is understood without the conversation.
        seconds, ttft_s: time from the question to the last character, and to the first.
        generate_s, embed_s, search_s, rerank_s: time in each kind of step.
        generations, rounds, queries: how many of each there were.
        prompt_tokens, cached_tokens, new_tokens: tokens of all generations. The KV states of cached tokens were reused.
        dropped: passages that did not fit the context, counted once for each generation that left them out.
        best_relevance, min_relevance: the probability that the passages answer the question, and the probability that
            was required; None without reranking.
        lists_probed, lists_ready, bytes_read: parts of IVF lists that were searched, the ones among them that were in
            memory or being read when the search began, and the bytes that searches had to read.
        lists_ahead: parts of lists that lookahead fetched.
        modelled_queries, modelled_s, modelled_joules: searches in which a modelled device took part, and the time and
            energy that the model gives for them. The other figures include neither.
        stall_s, hidden_s: time that a caller waited for the disk, and time that the disk worked while no caller waited.
        peak_resident, limit: the peak of the process's anonymous memory, and its limit.
        placement: where a language model's weights are.
        interrupted: whether the answer was cut short.
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
    modelled_queries: int = 0
    modelled_s: float = 0.0
    modelled_joules: float = 0.0
    stall_s: float = 0.0
    hidden_s: float = 0.0
    peak_resident: int = 0
    limit: int = 0
    placement: str = ""
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The figures in the form that `--json` prints. `floor` is the former name of `min_relevance`."""
        return {**asdict(self), "floor": self.min_relevance}


_COUNTERS = {
    "generations": "assistant.generations", "generate_s": "assistant.generate_s", "embed_s": "assistant.embed_s",
    "search_s": "assistant.search_s", "rerank_s": "assistant.rerank_s", "rounds": "assistant.rounds",
    "queries": "assistant.queries", "prompt_tokens": "assistant.prompt_tokens",
    "cached_tokens": "assistant.cached_tokens", "new_tokens": "assistant.new_tokens", "dropped": "assistant.dropped",
    "bytes_read": "index.bytes_read", "lists_ready": "index.hits", "lists_ahead": "lists.ahead",
    "modelled_queries": "modelled.queries", "modelled_s": "modelled.seconds", "modelled_joules": "modelled.joules",
    "stall_s": "disk.stall_s", "hidden_s": "disk.hidden_s",
}  # fmt: skip
"""Fields of `AnswerStats` and the trace counters that they are taken from."""


def measured(before: Mapping[str, float], after: Mapping[str, float]) -> AnswerStats:
    """The figures of an answer: the differences between two readings of the trace's counters."""

    def grown(counter: str) -> float:
        return after.get(counter, 0) - before.get(counter, 0)

    stats = AnswerStats(lists_probed=int(grown("index.hits") + grown("index.lists_read")))
    kinds = {name: type(getattr(stats, name)) for name in _COUNTERS}
    return replace(stats, **{name: kinds[name](grown(counter)) for name, counter in _COUNTERS.items()})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        text: the text, with marks such as [1] that refer to `citations`.
        citations: the citations in the order of their numbers. If the text has no marks, they are the passages that
            the generator was given.
        stats: figures of the answer.
        found: False when the documents do not hold the answer; the text then says so.
        rounds: every retrieval, in order.
        unsupported: sentences of the generator that no passage supports, with the texts shown in their place.
        uncertain: the passages may well not answer the question (see `evidence.CERTAIN`).
    """

    text: str
    citations: tuple[Citation, ...]
    stats: AnswerStats
    found: bool = True
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    unsupported: tuple[Unsupported, ...] = ()
    uncertain: bool = False

    def to_json(self) -> dict[str, Any]:
        """The answer in the form that `--json` prints."""
        return {
            "text": self.text,
            "citations": [citation.to_json() for citation in self.citations],
            "stats": {**self.stats.to_json(), "found": self.found},
            "uncertain": self.uncertain,
            "unsupported": [asdict(found) for found in self.unsupported],
        }
