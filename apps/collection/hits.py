"""`Hit`: one search result; the order of the reranker, and the merging of neighbours in a file. `brief`: the
results for a reader that pays for every word: places, and lines."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edge.apps.documents.base import Mail, place_in
from edge.text.control_characters import harmless
from edge.text.tokens import expected_tokens, fit, most_tokens

if TYPE_CHECKING:
    from edge.apps.collection.models import CollectionModels
    from edge.apps.verbs.requests import SearchOptions
    from edge.runtimes.reranker import Ranked
    from edge.runtimes.scoring import Watch

_LONGEST = 3

NO_ANSWER = 0.02
"""The probability below which people do not see a result beside better ones."""

_PER_FILE = 2  # With more, fewer candidates would be pruned.
_SPARE = 1  # Further results of the reranker, because its best hits may contain more neighbours than retrieval's.


@dataclass(frozen=True, slots=True)
class Stages:
    """Ranks and scores of a hit in each stage; None if the stage did not see the hit. Ranks start at 1.

    Attributes:
        lexical_rank, lexical_score: among the BM25 results.
        vector_rank, vector_score: among the nearest vectors; the score is the cosine.
        fused_rank, fused_score: after the fusion of both scores; the score is in 0 ... 1.
        reranker: the reranker's own probability that the passage answers the query, in 0 ... 1.
        blend: `reranker` mixed with `fused_score`; comparable only within one search.
    """

    lexical_rank: int | None = None
    lexical_score: float | None = None
    vector_rank: int | None = None
    vector_score: float | None = None
    fused_rank: int | None = None
    fused_score: float | None = None
    reranker: float | None = None
    blend: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    id: int
    line_start: int
    line_end: int
    page: int | None
    score: float

    def name(self, kind: str) -> str:
        place = place_in(kind, self.line_start, self.page)
        return f"line {place[1:]}" if place.startswith(":") else place.strip()


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a passage.

    Attributes:
        id: id of its chunk.
        path: the file's absolute path, or the id of an added text.
        line_start, line_end: first and last line of the passage in the file, from 1.
        page: page, slide or chapter, if the format has them.
        score: decides the order; in 0 ... 1, higher is better. With reranking it is the probability that the passage
            answers the query (see `CollectionModels.rank`), otherwise `fused_score`.
        snippet: the matching part of the passage, on one line.
        text: the passage.
        title, kind: title and kind of the file.
        context: title and headings above the passage.
        file: number of the file in the collection.
        ordinals: first and last ordinal among the file's chunks.
        marks: (start, end) of the query's words in `snippet`.
        stages: ranks and scores in each stage.
        numbers: the line number of each line of `text`.
        kinds: kind and end of each part of `text`, as the file's reader knew them (see `edge.apps.documents.kinds`);
            empty where it knew none.
        line: line of the sentence that matches the query best; 0 until `Collection.show` has set it.
        description: the user's descriptions of the folders above the file and of the file, outermost first.
        collection: name of the hit's collection, if several were searched together.
        mail: the mail that the passage is from, if it is from one.
        modified: the file's time as ISO 8601 in UTC; empty for a text that never was a file.
        more: the other results in the same file, best first, if the results are one for each file.
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
    kinds: tuple[tuple[int, int], ...] = ()
    line: int = 0
    description: str = ""
    collection: str = ""
    mail: Mail | None = None
    modified: str = ""
    more: tuple[Place, ...] = ()

    @property
    def key(self) -> str:
        """The passage's name among those of all collections that were searched together."""
        return f"{self.collection}:{self.id}" if self.collection else str(self.id)

    @property
    def citation(self) -> str:
        """`path:line` of the best matching sentence, or `path p. N` if the format has pages."""
        return self.path + place_in(self.kind, self.line or self.line_start, self.page, self.mail)

    @property
    def relevance(self) -> float | None:
        """The probability that the passage answers the query; None if the reranker did not run."""
        return None if self.stages.reranker is None else self.score

    def line_at(self, offset: int) -> int:
        """The line of the document that holds the character `offset` of `text`."""
        line = self.text.count("\n", 0, offset)
        return self.numbers[line] if line < len(self.numbers) else min(self.line_start + line, self.line_end)

    @property
    def passage(self) -> str:
        """The text that is ranked: the context, and below it the text."""
        return f"{self.context}\n{self.text}" if self.context else self.text

    def to_json(self, *, explain: bool = False) -> dict[str, Any]:
        """For JSON, without optional fields that are empty. `explain` adds the ranks and scores of each stage."""
        record: dict[str, Any] = {
            "path": self.path, "line_start": self.line_start, "line_end": self.line_end, "line": self.line,
            "score": self.score, "relevance": self.relevance, "snippet": self.snippet, "id": self.id,
        }  # fmt: skip
        record |= self.optional
        if explain:
            record["explain"] = {name: getattr(self.stages, name) for name in self.stages.__dataclass_fields__}
            record["title"] = self.title
            record["context"] = self.context
        return record

    @property
    def optional(self) -> dict[str, Any]:
        mail = None if self.mail is None else asdict(self.mail)
        found = {
            "page": self.page, "collection": self.collection, "description": self.description, "mail": mail,
            "more": [asdict(place) for place in self.more],
        }  # fmt: skip
        return {name: value for name, value in found.items() if value not in (None, "", [])}

    @property
    def wording(self) -> str:
        return " ".join(self.text.split())


def modified(mtime_ns: int) -> str:
    """A file's time as ISO 8601 in UTC; empty for a text that never was a file."""
    return datetime.fromtimestamp(mtime_ns // 10**9, UTC).isoformat() if mtime_ns else ""


def hit_from_json(document: dict[str, Any]) -> Hit:
    """JSON has replaced tuples by lists."""
    return Hit(
        **{
            **document,
            "ordinals": tuple(document["ordinals"]),
            "numbers": tuple(document["numbers"]),
            "kinds": tuple((kind, end) for kind, end in document["kinds"]),
            "marks": tuple((start, end) for start, end in document["marks"]),
            "stages": Stages(**document["stages"]),
            "mail": document["mail"] and Mail(**document["mail"]),
            "more": tuple(Place(**place) for place in document["more"]),
        }
    )


def merge(hits: Sequence[Hit], limit: int) -> list[Hit]:
    """The best `limit` of `hits`, best first. A text that occurs several times appears once. A hit that continues a
    better hit on the same page is merged into it."""
    merged: list[Hit] = []
    seen: set[str] = set()
    # Ordinals just before and after each merged hit. Outdated entries of a hit that has grown do no harm.
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


def by_file(hits: Sequence[Hit]) -> list[Hit]:
    """The best hit of each file (or mail), with the others as its `more`. Beside better ones, a hit that is most
    probably no answer is left out."""
    files: dict[object, list[Hit]] = {}
    likely = any(hit.relevance is None or hit.relevance >= NO_ANSWER for hit in hits)
    for hit in hits:
        if not likely or hit.relevance is None or hit.relevance >= NO_ANSWER:
            files.setdefault(_document(hit), []).append(hit)
    return [
        replace(best, more=tuple(Place(hit.id, hit.line_start, hit.line_end, hit.page, hit.score) for hit in more))
        for best, *more in files.values()
    ]


def _document(hit: Hit) -> object:
    return hit.file, hit.page if hit.mail else None


def results_of(hits: Sequence[Hit], options: SearchOptions, least: float = 0.0) -> list[Hit]:
    """Neighbours are merged, scores below `least` left out, and there is one result a file if asked for."""
    found = [hit for hit in merge(hits, len(hits) if options.files else options.top_k) if hit.score >= least]
    return by_file(found)[: options.top_k] if options.files else found


def kept(hits: Sequence[Hit], options: SearchOptions) -> list[Hit]:
    """As `results_of`, without low scores and what exceeds the tokens; a brief answer is cut when it is written."""
    found = results_of(hits, options, options.min_score)
    if options.max_tokens is None or options.brief:
        return found
    fitting = fit([expected_tokens(hit.passage) for hit in found], options.max_tokens)
    return [hit for hit, fits in zip(found, fitting, strict=True) if fits]


def reranked(
    models: CollectionModels, query: str, found: Sequence[Hit], top_k: int | None, watch: Watch | None = None,
    judged: int | None = None, files: bool = False,
) -> list[Hit]:  # fmt: skip
    """Orders the first `judged` of `found` (in retrieval order) by the reranker's probability blended with their
    retrieval scores, or ranks without scores. Returns as many as `merge` needs for `top_k` results, all if None. Scores
    of the others make a result's score equal in pools of all sizes. With `files` hits of further files are ranked as
    far as that costs little."""
    hits = found[:judged]
    if not hits:
        return []
    known = [hit.stages.fused_score for hit in found if hit.stages.fused_score is not None]
    wanted = min(top_k or len(hits), len(hits))

    def enough(found: Sequence[Ranked]) -> bool:
        return len(merge([hits[result.index] for result in found], wanted)) == wanted

    passages = [hit.passage for hit in hits]
    asked = needed(hits, wanted)
    if files:
        asked = max(asked, min(_covering(hits, wanted), _PER_FILE * wanted, len(hits)))
    ranked = models.rank(query, passages, asked, known if len(known) == len(found) else True, enough, watch)
    return [
        replace(
            hits[result.index],
            score=score,
            stages=replace(hits[result.index].stages, reranker=result.relevance, blend=result.score),
        )
        for result, score in zip(ranked, models.confidence([result.score for result in ranked]), strict=True)
    ]


def needed(hits: Sequence[Hit], wanted: int) -> int:
    """How many hits the reranker should return, so that merging leaves `wanted` results."""
    if len(merge(hits, len(hits))) == len(hits):
        return wanted
    spare = min(wanted + _SPARE, len(hits))
    count = wanted
    while count < len(hits) and len(merge(hits[:count], spare)) < spare:
        count += 1
    return count


def _covering(hits: Sequence[Hit], wanted: int) -> int:
    """How many hits are of `wanted` files; all if there are fewer files."""
    seen: set[object] = set()
    for count, hit in enumerate(hits, 1):
        seen.add(_document(hit))
        if len(seen) == wanted:
            return count
    return len(hits)


def _continues(one: Hit, other: Hit) -> bool:
    (first, last), (start, end) = one.ordinals, other.ordinals
    return (end + 1 == first or last + 1 == start) and max(last, end) - min(first, start) < _LONGEST


def _joined(best: Hit, other: Hit) -> Hit:
    """With the id, score and snippet of the better hit."""
    first, second = (best, other) if best.ordinals < other.ordinals else (other, best)
    return replace(
        best,
        text=f"{first.text}\n{second.text}",
        numbers=first.numbers + second.numbers,
        kinds=first.kinds + tuple((kind, len(first.text) + 1 + end) for kind, end in second.kinds),
        line_start=min(best.line_start, other.line_start),
        line_end=max(best.line_end, other.line_end),
        ordinals=(first.ordinals[0], second.ordinals[1]),
    )


ROOM = 2_500
"""Characters of an answer of `_RESULTS` results or fewer, if no number of tokens is given."""

_RESULTS = 8
_SHORTEST = {len: 60.0, expected_tokens: 20.0}  # A result with no room for so much of its lines is left out.
_MORE = 5

Size = Callable[[str], float]


def brief(hits: Sequence[Hit], *, top_k: int, max_tokens: int | None = None, around: str = "") -> dict[str, Any]:
    """The best of `hits` that fit, which share the room, and the number `left_out`. `max_tokens` (as `most_tokens`
    bounds them) replaces the characters. From the ninth of `top_k` results on, each adds its part to the room. `around`
    is what is sent beside the JSON, and counts, too."""
    size: Size = len if max_tokens is None else expected_tokens
    # The largest n with n + 2 sqrt(n) <= max_tokens.
    room = ROOM * max(1.0, top_k / _RESULTS) if max_tokens is None else (math.sqrt(max_tokens + 1) - 1) ** 2
    several = len({hit.collection for hit in hits}) > 1
    left = room - size(around) - size(written({"results": [], "left_out": len(hits)}))
    results: list[dict[str, Any]] = []
    for rest, hit in zip(range(len(hits), 0, -1), hits, strict=True):
        place = _place(hit, several)
        fixed = size(_shown({**place, "text": ""})) + 1
        text = _lines(hit, max(left / rest - fixed, _SHORTEST[size]), size)
        spent = fixed + size(written(text)[1:-1])
        if spent <= left:
            left -= spent
            results.append({**place, "text": text})

    def fits() -> bool:
        text = f"{around}{','.join(map(_shown, results))}{written({'results': [], 'left_out': len(hits)})}"
        return len(text) <= room if max_tokens is None else most_tokens(expected_tokens(text)) <= max_tokens

    while results and not fits():  # how many tokens a text has depends on all of its words
        results.pop()
    return {"results": results, "left_out": len(hits) - len(results)}


def written(value: object) -> str:
    """The JSON of an answer, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shown(result: dict[str, Any]) -> str:
    return written({name: harmless(value) if isinstance(value, str) else value for name, value in result.items()})


def _place(hit: Hit, several: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"path": hit.path, "lines": f"{hit.line_start}-{hit.line_end}"}
    if hit.page is not None:
        found["page"] = hit.page
    if hit.relevance is not None:
        found["relevance"] = round(hit.relevance, 2)
    if several:
        found["collection"] = hit.collection
    if hit.mail is not None:
        found |= {"from": hit.mail.sender, "sent": hit.mail.sent[:10], "subject": hit.mail.subject}
    if hit.more:
        found["more"] = [place.name(hit.kind) for place in hit.more[:_MORE]]
    return found


def _lines(hit: Hit, room: float, size: Size) -> str:
    """The line with the most words of the query and those around it that fit, numbered; of a line that is longer, the
    snippet."""
    texts = harmless(hit.text).split("\n")
    numbers = (*hit.numbers, *range(hit.line_start + len(hit.numbers), hit.line_start + len(texts)))
    shown = [(number, text) for number, text in zip(numbers, texts, strict=False) if text.strip()]
    lines = shown or [(hit.line_start, "")]
    words = {hit.snippet[start:end].lower() for start, end in hit.marks}
    matches = [(sum(word in text.lower() for word in words), number == hit.line) for number, text in lines]
    first = last = matches.index(max(matches))
    numbered = [f"{number}: {text}" for number, text in lines]
    cost = [size(written(line)[1:-1] + "\\n") for line in numbered]
    left = room - cost[first]
    if left < 0:
        text = f"{lines[first][0]}: {harmless(hit.snippet)}"
        while len(text) > 1 and (spent := size(written(text)[1:-1])) > room:
            text = text[: min(len(text) - 2, int(len(text) * room / spent))] + "…"
        return text
    for _ in lines:
        for at in (last + 1, first - 1):
            if 0 <= at < len(lines) and cost[at] <= left:
                left -= cost[at]
                first, last = min(first, at), max(last, at)
    return "\n".join(numbered[first : last + 1])
