"""Formats answers for people: citations, warnings, figures, and the record of the retrievals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.citations import Citation
from edge.apps.modelled import modelled_line
from edge.config import format_size


def cited(citations: Iterable[Citation], *, quotes: bool = False) -> Iterator[str]:
    """Yields a line per citation, `[1] path:line`; with `quotes` the passage's sentence below it."""
    for citation in citations:
        place = (
            f"{_near(citation.path)}:{citation.line}"
            if citation.page is None
            else (f"{_near(citation.path)} p. {citation.page}")
        )
        title = f"  {citation.title}" if citation.title else ""
        yield f"[{citation.number}] {place}{title}"
        if quotes:
            score = "" if citation.score is None else f"  (relevance {citation.score:.2f})"
            yield f'    "{citation.quote}"{score}'


def notices(answer: Answer) -> Iterator[str]:
    """Yields warnings about an answer, a line each: doubtful passages, unsupported facts, and passages left out."""
    stats = answer.stats
    if answer.uncertain:
        yield "these passages may be about something else than the question: read them before you rely on the answer"
    for found in answer.unsupported:
        yield f"{stats.generator} wrote {found.text!r}, and no passage says {', '.join(found.facts)}"
    if stats.dropped:
        passages = "1 passage was" if stats.dropped == 1 else f"{stats.dropped} passages were"
        yield (
            f"{passages} left out, since the context of {stats.generator} does not hold more beside the answer; "
            f"ask for fewer (-n), or take a larger context (--context)"
        )


def figures(stats: AnswerStats) -> Iterator[str]:
    """Yields the figures of an answer, a line each."""
    probed = max(1, stats.lists_probed)
    ttft = "" if stats.ttft_s is None else f", first text after {stats.ttft_s:.2f} s"
    yield f"memory   {format_size(stats.peak_resident)} peak of {format_size(stats.limit)} allowed"
    yield f"time     {stats.seconds:.2f} s{ttft}; {stats.pipeline} with {stats.generator}"
    yield (
        f"retrieve {stats.rounds} rounds, {stats.queries} queries: embed {stats.embed_s:.2f} s, "
        f"search {stats.search_s:.2f} s, rerank {stats.rerank_s:.2f} s"
    )
    yield (
        f"index    {stats.lists_ready / probed:.0%} of {stats.lists_probed} probed lists were in memory; "
        f"{stats.lists_ahead} fetched ahead, {format_size(stats.bytes_read)} read by searches"
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
            relevance = "" if hit.stages.relevance is None else f"relevance {hit.stages.relevance:.3f}  "
            found = f"BM25 #{hit.stages.lexical_rank or '-'}, vectors #{hit.stages.vector_rank or '-'}"
            yield f"  {relevance}{found}  {_near(hit.path)}:{hit.line_start}"
        if entry.below:
            needed = f"{entry.best or 0:.3f} of {answer.stats.min_relevance or 0:.3f}"
            yield f"  {entry.below} more were not relevant enough: {needed}"
    if not answer.found:
        yield "answer     not in the documents"


def _near(path: str) -> str:
    """A path relative to the working directory if the file lies in it; otherwise the path itself."""
    if not os.path.isabs(path):
        return path
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith(os.pardir) else relative
