"""Reranking in the shapes of Jina, Cohere (v1 and v2), vLLM and text-embeddings-inference."""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields, said
from edge.apps.serve.library import Library, served_reranker
from edge.apps.serve.refusals import Refusal
from edge.runtimes.reranker import Ranking

MOST_DOCUMENTS = 10_000


class Rerank:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def any(self, call: Call) -> dict[str, Any] | Any:
        """`/rerank`: with `texts` text-embeddings-inference's shape, else Jina's, Cohere's first and vLLM's."""
        values = await call.json()
        if "texts" in values and "documents" not in values:
            return await self._tei(call, Fields(values))
        return await self._documents(call, values)

    async def v1(self, call: Call) -> dict[str, Any]:
        """`/v1/rerank`: Jina's, Cohere's first and vLLM's shape."""
        return await self._documents(call, await call.json())

    async def v2(self, call: Call) -> dict[str, Any]:
        """`/v2/rerank`: Cohere's second shape, whose results hold no documents unless asked for."""
        return await self._documents(call, await call.json())

    async def _documents(self, call: Call, values: dict[str, Any]) -> dict[str, Any]:
        fields = Fields(values)
        query = _query(fields)
        documents = fields.list_of("documents")
        texts = [_text(document, fields, place) for place, document in enumerate(documents)]
        top_n = fields.optional_whole("top_n")
        shown = fields.flag("return_documents", "jina" in fields.text("model", "").lower())
        ranking = await self._ranked(call, fields, query, texts, top_n)
        results = []
        for found in ranking.results:
            result: dict[str, Any] = {"index": found.index, "relevance_score": found.score}
            if shown:
                document = documents[found.index]
                result["document"] = {"text": document} if isinstance(document, str) else document
            results.append(result)
        tokens = ranking.stats.tokens
        return {
            "id": str(uuid4()),
            "object": "list",
            "model": fields.text("model", "") or self._library.reranker().held.name,
            "results": results,
            "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    async def _tei(self, call: Call, fields: Fields) -> Any:
        query, texts = fields.text("query"), fields.texts("texts")
        raw, shown = fields.flag("raw_scores", False), fields.flag("return_text", False)
        ranking = await self._ranked(call, fields, query, texts, None)
        results = []
        for found in ranking.results:
            result: dict[str, Any] = {"index": found.index, "score": _logit(found.score) if raw else found.score}
            if shown:
                result["text"] = texts[found.index]
            results.append(result)
        return results

    async def _ranked(self, call: Call, fields: Fields, query: str, texts: list[str], top_n: int | None) -> Ranking:
        if len(texts) > MOST_DOCUMENTS:
            raise Refusal(422, f"{len(texts):,} documents are more than the {MOST_DOCUMENTS:,} of one request")
        if not texts:
            raise Refusal(422, "there are no documents to rank")
        reranker = served_reranker(self._library, fields.text("model", ""))

        count = None if top_n is None else min(top_n, len(texts))
        ranking: Ranking = await call.done(lambda: reranker.explain(query, texts, count))
        return ranking


def _query(fields: Fields) -> str:
    value = fields.raw("query")
    if isinstance(value, dict):  # Jina's way to write a text
        return Fields(value).text("text")
    return fields.text("query")


def _text(document: Any, fields: Fields, place: int) -> str:
    """A document as a text: itself, its `text`, or the fields that `rank_fields` names, a line each."""
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
        names = fields.texts("rank_fields", [])
        if names:
            return "\n".join(f"{name}: {document[name]}" for name in names if name in document)
        found = document.get("text", document.get("content"))
        if isinstance(found, str):
            return found
        if all(isinstance(value, str) for value in document.values()) and document:
            return "\n".join(f"{name}: {value}" for name, value in document.items())
    raise Refusal(422, f"document {place} is a text or an object with a `text`, not {said(document)}")


def _logit(score: float) -> float:
    score = min(max(score, 1e-12), 1 - 1e-12)
    return math.log(score / (1 - score))
