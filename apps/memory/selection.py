"""Long-context selection: the parts of a long text or conversation for a model with a smaller context (GRATING, section
6)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.apps.memory.arguments import check_text
from edge.apps.memory.records import dated
from edge.apps.store.lexical import bounded_query
from edge.errors import InputError
from edge.models.blending import BM25_WEIGHT, convex_combination
from edge.text.sentences import boundaries
from edge.text.tokens import expected_tokens, fit, most_tokens

if TYPE_CHECKING:  # the command line splits texts before it loads a model
    from edge.apps.memory.store import MemoryModels
    from edge.models.blending import Retrieved

LONGEST_SEGMENT = 800
"""The most characters of a segment, some 200 tokens, which a cross-encoder reads at once."""

_SHORTEST_SEGMENT = 80
"""A paragraph with fewer characters, such as a heading, is joined with the paragraph after it."""

_SPARE = 1.5
"""The ranked pieces, as a multiple of what fits on average: relevant pieces may be shorter."""

_RERANKED = 256
"""The most segments that the reranker judges. Of a longer text, it judges those with vectors nearest to the query."""

_READ = 4 * LONGEST_SEGMENT
"""The characters of a piece whose words are counted: a message may be of any length, and a cross-encoder reads no
more."""

_TELLING = 1e-3
"""A best score below it comes from words that half of the pieces hold."""

_PARAGRAPHS = re.compile(r"(?:(?!\n[ \t]*\n).)+", re.DOTALL)

Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the text, or one message: its position, its characters (0 and the length of its text for messages),
    its relevance in 0 to 1, and its tokens."""

    index: int
    text: str
    start: int
    end: int
    score: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The pieces that were kept, in their original order."""

    segments: tuple[Segment, ...]
    messages: tuple[Mapping[str, Any], ...]
    tokens: int
    left_out: int

    @property
    def text(self) -> str:
        """The kept pieces as one text, separated by empty lines."""
        return "\n\n".join(segment.text for segment in self.segments)


def select(
    models: MemoryModels,
    source: str | Sequence[Mapping[str, Any]],
    query: str,
    budget_tokens: int,
    *,
    rerank: bool,
    count: Count,
) -> Selection:
    """The pieces most relevant to `query` that fit a token budget, in their original order. System messages always
    stay."""
    check_text(bounded_query(query), "the query")
    if isinstance(budget_tokens, bool) or not isinstance(budget_tokens, int) or budget_tokens < 1:
        raise InputError(f"budget_tokens is a positive whole number, not {budget_tokens!r}")
    if not isinstance(source, Sequence) or isinstance(source, bytes):
        raise InputError(f"what is selected from is a text or a list of messages, not {type(source).__name__}")
    if isinstance(source, str):
        spans = list(split(source))
        texts = [source[start:end] for start, end in spans]
        always: set[int] = set()
    else:
        texts = [_spoken(message) for message in source]
        spans = [(0, len(text)) for text in texts]
        always = {number for number, message in enumerate(source) if message.get("role") == "system"}
    tokens = [count(text) for text in texts]
    spent = sum(tokens[number] for number in always)
    if spent > budget_tokens:
        raise InputError(f"the system messages alone are {spent} tokens; the budget is {budget_tokens}")
    scores = np.ones(len(texts))
    if sum(tokens) > budget_tokens:
        scores = _score(models, texts, tokens, query, budget_tokens - spent, rerank)
    kept = set(always)
    for number in np.argsort(-scores, kind="stable").tolist():
        if number not in kept and spent + tokens[number] <= budget_tokens:
            kept.add(number)
            spent += tokens[number]
    segments = tuple(
        Segment(number, texts[number], *spans[number], float(scores[number]), tokens[number]) for number in sorted(kept)
    )
    messages = () if isinstance(source, str) else tuple(source[number] for number in sorted(kept))
    return Selection(segments, messages, spent, len(texts) - len(kept))


def fitting(found: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """What fits `max_tokens` of the conversations and results of a search, in this order. Neighbours that are results
    or neighbours of a better one are left out, and those of a result that fits only without them."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InputError(f"max_tokens is a positive whole number, not {max_tokens!r}")
    results, told = found["results"], found.get("conversations")
    tokens = [expected_tokens(dated(" ".join(one["about"]), one["began"])) for one in told or ()]
    taken = fit(tokens, max_tokens)
    spent = sum(compress(tokens, taken))
    kept: list[dict[str, Any]] = []
    given = {result["id"] for result in results}
    for result in results:
        own = _said_tokens(result)
        if most_tokens(spent + own) > max_tokens:
            continue
        spent += own
        if "neighbours" in result:
            around = [turn for turn in result["neighbours"] if turn["id"] not in given]
            more = sum(map(_said_tokens, around))
            around = around if most_tokens(spent + more) <= max_tokens else []
            spent += more * bool(around)
            given.update(turn["id"] for turn in around)
            result = {**result, "neighbours": around}
        kept.append(result)
    ids = {result["id"] for result in kept}
    left_out = [result["id"] for result in results if result["id"] not in ids]
    beside = {} if told is None else {"conversations": list(compress(told, taken))}
    return {"results": kept, "tokens": most_tokens(spent), "left_out": left_out} | beside


def _said_tokens(result: Mapping[str, Any]) -> float:
    when = result.get("local_timestamp") or result.get("timestamp")
    return expected_tokens(dated(result["memory"], when))


def split(text: str) -> Iterator[tuple[int, int]]:
    """The spans (start, end) of a text's pieces: a paragraph, sentences of a long one, or a heading with the next
    paragraph."""
    begin: int | None = None
    end = 0
    for start, end in _stripped(text, ((match.start(), match.end()) for match in _PARAGRAPHS.finditer(text))):
        if end - start < _SHORTEST_SEGMENT and begin is None:
            begin = start
            continue
        yield from _pieces(text, start if begin is None else begin, end)
        begin = None
    if begin is not None:
        yield begin, end


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of groups of whole sentences of at most `LONGEST_SEGMENT` characters."""
    if end - start <= LONGEST_SEGMENT:
        yield start, end
        return
    stops = [(start + stop, start + following) for stop, following in boundaries(text[start:end])]
    begin = last = start
    sentences = zip([start, *(following for _, following in stops)], [*(stop for stop, _ in stops), end], strict=True)
    for low, high in _stripped(text, sentences):
        if high - begin > LONGEST_SEGMENT and last > begin:
            yield begin, last
            begin = low
        while high - begin > LONGEST_SEGMENT:
            yield begin, begin + LONGEST_SEGMENT
            begin += LONGEST_SEGMENT
        last = high
    if last > begin:
        yield begin, last


def _stripped(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, end in spans:
        piece = text[start:end]
        if piece.strip():
            yield start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _score(
    models: MemoryModels, texts: Sequence[str], tokens: Sequence[int], query: str, room: int, rerank: bool
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A score for each piece, [n] float64. The reranker judges enough pieces to fill `room` tokens; all others score
    lower."""
    numbers = [number for number, text in enumerate(texts) if text.strip()]
    scores = np.zeros(len(texts))
    near: dict[int, float] = {}
    if not rerank or len(numbers) > _RERANKED:
        vectors = models.embed([texts[number] for number in numbers])
        cosines = vectors @ models.embed([query], query=True)[0]
        nearness = (1 + cosines) / 2
        scores[numbers] = nearness
        if not rerank:
            return scores
        chosen = sorted(np.argsort(-nearness, kind="stable")[:_RERANKED].tolist())
        near = {place: float(cosines[number]) for place, number in enumerate(chosen)}
        numbers = [numbers[place] for place in chosen]
    if not numbers:
        return scores
    pieces = [texts[number] for number in numbers]
    average = sum(tokens[number] for number in numbers) / len(numbers)
    wanted = max(1, math.ceil(_SPARE * room / max(1.0, average)))
    retrieved = _retrieved(models, query, pieces, near)
    judged = models.rank(query, pieces, min(wanted, len(pieces)), retrieved=retrieved)
    if len(judged) < len(pieces) and sum(tokens[numbers[ranked.index]] for ranked in judged) < room:
        judged = models.rank(query, pieces, retrieved=retrieved)
    # Pieces that the reranker has not judged rank below all judged pieces.
    scores *= min(ranked.score for ranked in judged)
    for ranked in judged:
        scores[numbers[ranked.index]] = ranked.score
    return scores


def _retrieved(models: MemoryModels, query: str, pieces: Sequence[str], near: Mapping[int, float]) -> Retrieved:
    """The fused scores of the query's words and of `near`, the cosines that are known; False if no word tells the
    pieces apart. By them the reranker drops many pieces before it reads one."""
    words = models.word_scores(query, [piece[:_READ] for piece in pieces])
    if max(words.values(), default=0.0) < _TELLING:
        return False
    fused = dict(convex_combination(words, near, BM25_WEIGHT))
    return [fused.get(place, 0.0) for place in range(len(pieces))]


def _spoken(message: object) -> str:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise InputError("select takes a text, or messages with role and content")
    return f"{message.get('role', 'user')}: {message['content']}"
