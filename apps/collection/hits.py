"""`Hit`: one search result, and how neighbouring results of one file become one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_LONGEST = 3
"""A merged hit spans at most so many chunks: beyond that a citation points at nothing in particular."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How a hit came about; None where a stage did not see it. Ranks start at 1.

    Attributes:
        lexical_rank, lexical_score: among the BM25 results.
        vector_rank, vector_score: among the nearest vectors; the score is the cosine.
        fused_rank, fused_score: after both were fused by their scores; the score is in 0 ... 1.
        relevance: the reranker's own probability that the passage answers the query, in 0 ... 1.
    """

    lexical_rank: int | None = None
    lexical_score: float | None = None
    vector_rank: int | None = None
    vector_score: float | None = None
    fused_rank: int | None = None
    fused_score: float | None = None
    relevance: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found.

    Attributes:
        id: of its chunk.
        path: the file, absolute; or the id under which a text was added.
        line_start, line_end: lines of the passage in the file, from 1, the last one included.
        page: page, slide or chapter, where the format has them.
        score: what the order follows, in 0 ... 1, higher is better; comparable within one search only.
        snippet: the part of the passage that matches, on one line.
        text: the passage.
        title, kind: of the file.
        context: title and headings the passage stands under.
        file: number of the file in the collection.
        ordinals: first and last place among the file's chunks.
        marks: (start, end) of the query's words in `snippet`.
        stages: how it came about.
        numbers: the line number of each line of `text`.
        line: where the sentence stands that holds most of what was asked for; 0 as long as nobody has looked.
        description: what people say of the folders it lies in, outermost first.
        collection: where it was found, if several were searched together.
    """

    id: int
    path: str
    line_start: int
    line_end: int
    page: int | None
    score: float
    snippet: str
    text: str
    title: str
    kind: str
    context: str
    file: int
    ordinals: tuple[int, int]
    marks: tuple[tuple[int, int], ...] = ()
    stages: Stages = field(default_factory=Stages)
    numbers: tuple[int, ...] = ()
    line: int = 0
    description: str = ""
    collection: str = ""

    @property
    def citation(self) -> str:
        """`path:line` of the sentence that matches best, or `path p. N` where the format has pages."""
        return f"{self.path}:{self.line or self.line_start}" if self.page is None else f"{self.path} p. {self.page}"

    @property
    def relevance(self) -> float:
        """The reranker's probability that the passage answers the query; 0 where it was not asked."""
        return self.stages.relevance or 0.0

    def line_at(self, offset: int) -> int:
        """The line of the document that the character `offset` of `text` stands on."""
        line = self.text.count("\n", 0, offset)
        return self.numbers[line] if line < len(self.numbers) else min(self.line_start + line, self.line_end)

    @property
    def passage(self) -> str:
        """What is ranked: the context, and the text below it."""
        return f"{self.context}\n{self.text}" if self.context else self.text

    @property
    def wording(self) -> str:
        """The text without its layout: equal for passages that read alike."""
        return " ".join(self.text.split())


def merge(hits: Sequence[Hit], limit: int) -> list[Hit]:
    """The best `limit` of `hits`, best first: a text that occurs several times appears once, and a hit that continues a
    better one on the same page becomes part of it."""
    merged: list[Hit] = []
    seen: set[str] = set()
    # Where a merged hit goes on: the places before and after it. Those it had before it grew do no harm.
    edges: defaultdict[tuple[int, int | None, int], set[int]] = defaultdict(set)
    for hit in hits:
        if hit.wording in seen:
            continue
        seen.add(hit.wording)
        touched = set().union(*(edges.get((hit.file, hit.page, place), ()) for place in hit.ordinals))
        at = min((i for i in touched if _continues(merged[i], hit)), default=None)
        if at is not None:
            merged[at] = _joined(merged[at], hit)
        elif len(merged) < limit:
            at = len(merged)
            merged.append(hit)
        if at is not None:
            first, last = merged[at].ordinals
            for place in (first - 1, last + 1):
                edges[hit.file, hit.page, place].add(at)
    return merged


def _continues(one: Hit, other: Hit) -> bool:
    """Whether two hits on one page are neighbours, and not too long together."""
    (first, last), (start, end) = one.ordinals, other.ordinals
    return (end + 1 == first or last + 1 == start) and max(last, end) - min(first, start) < _LONGEST


def _joined(best: Hit, other: Hit) -> Hit:
    """Both passages as one, with the id, score and snippet of the better."""
    first, second = (best, other) if best.ordinals < other.ordinals else (other, best)
    return replace(
        best,
        text=f"{first.text}\n{second.text}",
        numbers=first.numbers + second.numbers,
        line_start=min(best.line_start, other.line_start),
        line_end=max(best.line_end, other.line_end),
        ordinals=(first.ordinals[0], second.ordinals[1]),
    )
