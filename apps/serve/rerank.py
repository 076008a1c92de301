"""Reranking in the shape of Jina, Cohere (both versions), vLLM and llama.cpp, which is one but for the errors:
`/v1/rerank`, `/v2/rerank`, `/v1/reranking`, and `/rerank` beside the shape of text-embeddings-inference; infinity's is
`/infinity/rerank`. vLLM's `/score` judges pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta, Struct

from edge.apps.serve.body import MOST_ENTRIES, Texts, Whole, as_list, with_idle
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal, plain
from edge.runtimes.reranker import Ranking

MOST_FIELDS = 100

_INFINITY = "/infinity/rerank"


class RerankText(Struct):
    """A text as Jina writes it."""

    text: str


_REFUSED = {"max_chunks_per_doc": (), "truncate_prompt_tokens": (-1,), "return_embeddings": (False,)}
_HARMLESS = ("priority", "user", "truncation", "max_tokens_per_doc")
"""`max_tokens_per_doc` bounds the costs of a service. Here the model's own length cuts documents."""


@with_idle(_REFUSED, _HARMLESS)
class RerankBody(Struct, kw_only=True):
    """Documents to rank: texts, or objects with a `text` or with `rank_fields`."""

    query: str | RerankText
    documents: Annotated[list[str | dict[str, Any]], Meta(max_length=MOST_ENTRIES)]
    model: str | None = None
    top_n: Whole | None = None
    return_documents: bool | None = None
    rank_fields: Annotated[list[str], Meta(max_length=MOST_FIELDS)] | None = None


def rerank(call: Call, body: RerankBody) -> dict[str, Any]:
    """Ranks `documents` by their relevance to a `query`, best first. Scores are probabilities."""
    query = body.query if isinstance(body.query, str) else body.query.text
    # A field that is named twice says no more, and would be copied twice.
    names = list(dict.fromkeys(body.rank_fields or ()))
    texts = [_document_text(document, names, place) for place, document in enumerate(body.documents)]
    shown = body.return_documents
    if shown is None:  # Jina's servers return documents unless told otherwise, the others do not
        shown = "jina" in (body.model or "").lower()
    ranking = ranked(call, body.model, query, texts, body.top_n)
    results = []
    for found in ranking.results:
        result: dict[str, Any] = {"index": found.index, "relevance_score": found.score}
        if shown:
            document = body.documents[found.index]
            result["document"] = {"text": document} if isinstance(document, str) else document
            if call.request.url.path == _INFINITY:
                result["document"] = texts[found.index]
        results.append(result)
    tokens = ranking.stats.tokens
    return {
        "id": str(uuid4()),
        "object": "list",
        "model": body.model or call.library.reranker().name,
        "results": results,
        "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def ranked(call: Call, model: str | None, query: str, texts: list[str], top_n: int | None = None) -> Ranking:
    if not texts:
        raise HttpRefusal(422, "there are no documents to rank")
    count = None if top_n is None else min(top_n, len(texts))
    return call.library.served_reranker(model or "").run(lambda reranker: reranker.explain(query, texts, count))


def _document_text(document: str | dict[str, Any], names: Sequence[str], place: int) -> str:
    if isinstance(document, str):
        return document
    if names:
        return "\n".join(f"{name}: {document[name]}" for name in names if name in document)
    found = document.get("text", document.get("content"))
    if isinstance(found, str):
        return found
    if all(isinstance(value, str) for value in document.values()) and document:
        return "\n".join(f"{name}: {value}" for name, value in document.items())
    raise HttpRefusal(422, f"the field `documents[{place}]` is a text or an object with a `text`")


@with_idle(
    {"truncate_prompt_tokens": (-1,), "activation": (True,), "use_activation": (True,), "softmax": (True,)},
    ("priority", "user", "request_id", "cache_salt"),
)
class ScoreBody(Struct, kw_only=True):
    """Pairs of texts: each of `text_1` with the one of `text_2` in its place, or one text with all of `text_2`."""

    text_1: Texts
    text_2: Texts
    model: str | None = None


def score(call: Call, body: ScoreBody) -> dict[str, Any]:
    """Scores each pair of texts: the probability that the second one answers the first."""
    first, second = as_list(body.text_1), as_list(body.text_2)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise HttpRefusal(422, "the fields `text_1` and `text_2` hold as many texts, or `text_1` holds one")
    places: dict[str, list[int]] = {}
    for place, query in enumerate(first):
        places.setdefault(query, []).append(place)
    scores, tokens = [0.0] * len(second), 0
    for query, those in places.items():
        ranking = ranked(call, body.model, query, [second[place] for place in those])
        tokens += ranking.stats.tokens
        for found in ranking.results:
            scores[those[found.index]] = found.score
    return {
        "id": f"score-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or call.library.reranker().name,
        "data": [{"index": place, "object": "score", "score": value} for place, value in enumerate(scores)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def jina(status: int, message: str) -> dict[str, Any]:
    """As Jina and vLLM write it, with the member that Cohere's first version reads."""
    return {**plain(status, message), "message": message}


def cohere(status: int, message: str) -> dict[str, Any]:
    return {"message": message}


PATHS = (
    *(
        ServedPath("POST", path, rerank, RerankBody, shape=jina)
        for path in ("/v1/rerank", "/v1/reranking", "/reranking", _INFINITY)
    ),
    *(ServedPath("POST", path, score, ScoreBody, shape=jina) for path in ("/score", "/v1/score")),
    ServedPath("POST", "/v2/rerank", rerank, RerankBody, shape=cohere),
)
