"""An assistant's answer: the text, its citations, the retrievals and figures behind it; and their form for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edge.apps.assistant.citations import Citation, own_marks
from edge.apps.assistant.grounding import Unsupported
from edge.apps.collection.hits import Hit
from edge.apps.collection.paths import from_here
from edge.apps.console import index_line, modelled_line
from edge.config import counted, format_size

NOT_FOUND = "This is not in the documents."
CLOSEST = "The nearest passage:"


class Cancelled(Exception):
    """The question was withdrawn while it was being answered. The text written so far is kept."""


class NotInDocuments(Exception):
    """No passage answers the question. This is not an error: the answer is that the documents do not say."""


@dataclass(frozen=True, slots=True)
class Round:
    """One retrieval. `question`: what passages were ranked by; `below`: how many ranked ones were not kept; `best`: the
    probability that they answer, None without reranking; `nearest`: the best citations if none was kept."""

    queries: tuple[str, ...]
    question: str
    passages: tuple[Hit, ...]
    below: int
    best: float | None
    search_s: float
    rerank_s: float
    nearest: tuple[str, ...] = ()


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
        lists_cut: lists of a query that its search's deadline left no time for.
        lists_ahead: parts of lists that lookahead fetched.
        modelled_queries, modelled_s, modelled_joules: searches in which a modelled device took part, and the time and
            energy that the model gives for them. The other figures include neither.
        stall_s, hidden_s: time that a caller waited for the disk, and time that the disk worked while no caller waited.
        peak_resident, limit: the peak of the process's anonymous memory, and its limit.
        placement: where a language model's weights are.
        interrupted: whether the answer was cut short by the user.
        cut: whether the answer ended at the most tokens that it may have.
        spelled: words of the question that no passage holds, with those that were searched for in their place.
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
    lists_cut: int = 0
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
    cut: bool = False
    spelled: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_COUNTERS = {
    "generations": "assistant.generations", "generate_s": "assistant.generate_s", "embed_s": "assistant.embed_s",
    "search_s": "assistant.search_s", "rerank_s": "assistant.rerank_s", "rounds": "assistant.rounds",
    "queries": "assistant.queries", "prompt_tokens": "assistant.prompt_tokens",
    "cached_tokens": "assistant.cached_tokens", "new_tokens": "assistant.new_tokens", "dropped": "assistant.dropped",
    "bytes_read": "index.bytes_read", "lists_ready": "index.hits", "lists_ahead": "lists.ahead",
    "lists_cut": "index.lists_cut",
    "modelled_queries": "modelled.queries", "modelled_s": "modelled.seconds", "modelled_joules": "modelled.joules",
    "stall_s": "disk.stall_s", "hidden_s": "disk.hidden_s",
}  # fmt: skip


def measured(counted: Mapping[str, float]) -> AnswerStats:
    def grown(counter: str) -> float:
        return counted.get(counter, 0)

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
        uncertain: the passages may well not answer the question (see `reading.ANSWER`).
        probability: the probability that what is shown of the passages answers; None where nothing was judged.
        span: the words of a passage that answer the question; empty if none is certain.
    """

    text: str
    citations: tuple[Citation, ...]
    stats: AnswerStats
    found: bool = True
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    unsupported: tuple[Unsupported, ...] = ()
    uncertain: bool = False
    probability: float | None = None
    span: str = ""

    @property
    def nearest(self) -> tuple[str, ...]:
        return () if self.found else tuple(dict.fromkeys(place for entry in self.rounds for place in entry.nearest))[:3]

    def to_json(self) -> dict[str, Any]:
        """The answer in the form that `--json` prints."""
        return {
            "text": self.text,
            "citations": [citation.to_json() for citation in self.citations],
            "stats": {**self.stats.to_json(), "found": self.found},
            "uncertain": self.uncertain,
            "probability": self.probability,
            "span": self.span,
            "nearest": self.nearest,
            "unsupported": [asdict(found) for found in self.unsupported],
        }


def cited(citations: Iterable[Citation], *, quotes: bool = False) -> Iterator[str]:
    """Yields a line per citation, `[1] path:line`; with `quotes` the passage's sentence below it."""
    for citation in citations:
        place = from_here(citation.path) + citation.place.removeprefix(citation.path)
        title = citation.title if citation.mail is None else citation.mail.line
        yield f"[{citation.number}] {place}  {own_marks(title)}".rstrip()
        if quotes:
            score = "" if citation.score is None else f"  (relevance {citation.score:.2f})"
            yield f'    "{own_marks(citation.quote)}"{score}'


_MOST_NAMED = 2
"""Sentences without support that are shown to a person. A small model may write ten of them."""


def notices(answer: Answer) -> Iterator[str]:
    """Yields warnings about an answer, a line each: doubtful passages, unsupported facts, and passages left out."""
    stats = answer.stats
    for word, other in stats.spelled.items():
        yield f"searched for {other}, because no passage holds {word}"
    if answer.nearest:
        yield f"nearest to the question: {', '.join(map(from_here, answer.nearest))}"
    if answer.uncertain and CLOSEST not in answer.text:
        yield "these passages may be about something else than the question: read them before you rely on the answer"
    for found in answer.unsupported[:_MOST_NAMED]:
        yield f"{stats.generator} wrote {found.text!r}, and no passage says {', '.join(found.facts)}"
    if (more := len(answer.unsupported) - _MOST_NAMED) > 0:
        yield f"{stats.generator} wrote {counted(more, 'further sentence')} that no passage supports (--json has all)"
    if stats.dropped:
        passages = "1 passage was" if stats.dropped == 1 else f"{stats.dropped} passages were"
        yield (
            f"{passages} left out, since the context of {stats.generator} does not hold more beside the answer; "
            f"ask for fewer (-n), or take a larger context (--context)"
        )


def figures(stats: AnswerStats) -> Iterator[str]:
    ttft = "" if stats.ttft_s is None else f", first text after {stats.ttft_s:.2f} s"
    yield f"memory   {format_size(stats.peak_resident)} peak of {format_size(stats.limit)} allowed"
    yield f"time     {stats.seconds:.2f} s{ttft}; {stats.pipeline} with {stats.generator}"
    yield (
        f"retrieve {stats.rounds} rounds, {stats.queries} queries: embed {stats.embed_s:.2f} s, "
        f"search {stats.search_s:.2f} s, rerank {stats.rerank_s:.2f} s"
    )
    ready = stats.lists_ready / max(1, stats.lists_probed)
    yield index_line(
        stats.lists_probed,
        f"{ready:.0%} of {stats.lists_probed} probed lists were in memory; {stats.lists_ahead} fetched ahead, "
        f"{format_size(stats.bytes_read)} read by searches",
        stats.lists_cut,
    )
    if stats.modelled_queries:
        yield modelled_line(stats.modelled_queries, stats.modelled_s, stats.modelled_joules)
    yield f"disk     {stats.stall_s * 1e3:.0f} ms waited for, {stats.hidden_s * 1e3:.0f} ms hidden"
    yield (
        f"generate {stats.generations} times, {stats.generate_s:.2f} s: {stats.prompt_tokens:,} prompt tokens, "
        f"{stats.cached_tokens / max(1, stats.prompt_tokens):.0%} of them cached; {stats.new_tokens:,} new; "
        f"{stats.dropped} passages left out"
    )
    if stats.placement:
        yield f"model    {stats.placement}"
    if stats.best_relevance is not None:
        yield f"answered relevance {stats.best_relevance:.3f}, needed {stats.min_relevance or 0:.3f}"


def reasons(answer: Answer) -> Iterator[str]:
    """Yields a line for each step behind an answer: the question, the searches, and the passages found and left out."""
    yield f"question   {answer.stats.question}"
    for number, entry in enumerate(answer.rounds, 1):
        yield f"round {number}    {entry.search_s * 1e3:.0f} ms search, {entry.rerank_s * 1e3:.0f} ms rerank"
        for query in entry.queries:
            yield f"  looked for {' '.join(query.split())}"
        for hit in entry.passages:
            relevance = "" if hit.relevance is None else f"relevance {hit.relevance:.3f}  "
            found = f"BM25 #{hit.stages.lexical_rank or '-'}, vectors #{hit.stages.vector_rank or '-'}"
            yield f"  {relevance}{found}  {from_here(hit.path)}:{hit.line_start}"
        if entry.below:
            needed = f"{entry.best or 0:.3f} of {answer.stats.min_relevance or 0:.3f}"
            yield f"  {entry.below} more were not relevant enough: {needed}"
    if not answer.found:
        yield "answer     not in the documents"
