"""Reranking and embeddings, in the shapes of other servers.

Reranking has the shapes of Jina, Cohere (v1 and v2), vLLM and text-embeddings-inference. Embeddings have those of
OpenAI (and Jina) and of text-embeddings-inference.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from edge.apps.serve.endpoint import Call
from edge.apps.serve.json_values import Fields, said
from edge.apps.serve.library import Library, served_embedder, served_reranker
from edge.apps.serve.refusals import Refusal
from edge.runtimes.reranker import Ranking
from edge.runtimes.stats import RunStats

MOST_FIELDS = 100


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
        # A field that is named twice says no more, and would be copied twice.
        names = list(dict.fromkeys(fields.texts("rank_fields", [], most=MOST_FIELDS)))
        texts = [_document_text(document, names, place) for place, document in enumerate(documents)]
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


def _document_text(document: Any, names: Sequence[str], place: int) -> str:
    """A document as a text: itself, its `text`, or the fields of these names, a line each."""
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
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


Vector = npt.NDArray[np.float32]

MOST_TEXTS = 8192
_FLOAT_BYTES, _BASE64_BYTES = 96, 16
"""Memory of one number of an answer: as Python's object with its text, and as base64."""

_QUERIES = ("query", "search_query", "retrieval.query")
"""How clients say that texts are questions: TEI's prompt names, Cohere's input types, Jina's tasks."""


_TYPES = {"int8": "int8", "fp16": "float16", "fp32": "float32"}
_POOLINGS = {"mean": "mean", "first-token": "cls", "last-token": "last_token"}
"""How text-embeddings-inference names precisions and poolings."""


class Embeddings:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def openai(self, call: Call) -> Any:
        """`/v1/embeddings`: OpenAI's shape, with `encoding_format` and `dimensions`."""
        fields = Fields(await call.json())
        texts = _texts(fields, "input")
        form = fields.text("encoding_format", "float")
        if form not in ("float", "base64"):
            raise Refusal(422, f"the field `encoding_format` is float or base64, not {form[:40]!r}")
        query = fields.text("task", fields.text("input_type", "")) in _QUERIES
        name = fields.text("model", "")
        each: Callable[[Vector], Any] = _numbers if form == "float" else _encoded
        found, tokens = await self._embedded(call, name, texts, query, each, fields.optional_whole("dimensions"))
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        model = served_embedder(self._library, name).held.name
        return {"object": "list", "data": data, "model": name or model, "usage": usage}

    async def tei(self, call: Call) -> Any:
        """`/embed`: the shape of text-embeddings-inference."""
        fields = Fields(await call.json())
        texts = _texts(fields, "inputs")
        query = fields.text("prompt_name", "") in _QUERIES
        found, _ = await self._embedded(call, "", texts, query, _numbers, fields.optional_whole("dimensions"))
        return found

    async def info(self, call: Call) -> Any:
        """`/info`: what text-embeddings-inference says of its model. Opens the embedder."""
        import importlib.metadata

        embedder, reranker = self._library.embedder(), self._library.reranker().held.name
        spec, longest = await call.done(lambda: (embedder.model.spec, embedder.engine.max_tokens))
        return {
            "model_id": embedder.held.name,
            "model_sha": None,
            "model_dtype": _TYPES[spec.layer.precision],
            "model_type": {"embedding": {"pooling": _POOLINGS[spec.head.kind]}, "reranker": {"model_id": reranker}},
            "max_concurrent_requests": call.requests.limits.connections,
            "max_input_length": longest,
            "max_batch_tokens": longest * MOST_TEXTS,
            "max_client_batch_size": MOST_TEXTS,
            "auto_truncate": True,
            "version": importlib.metadata.version("edge-rag"),
        }

    async def _embedded(
        self,
        call: Call,
        model: str,
        texts: list[str],
        query: bool,
        each: Callable[[Vector], Any],
        dimensions: int | None,
    ) -> tuple[list[Any], int]:
        """The vectors as `each` writes them, and the number of tokens. All of the work is done in a thread."""
        embedder = served_embedder(self._library, model)
        tokens: list[int] = []

        def note(stats: RunStats) -> None:
            tokens.append(stats.tokens)

        def embed() -> list[Any]:
            vectors = embedder.embed(texts, query=query, watch=note)
            nbytes = _FLOAT_BYTES if each is _numbers else _BASE64_BYTES
            call.requests.hold(call.lease, call.lease.nbytes + vectors.size * nbytes)
            return [each(vector) for vector in _shortened(vectors, dimensions)]

        return await call.done(embed), sum(tokens)


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.raw(name)
    if isinstance(value, list) and value and not all(isinstance(each, str) for each in value):
        raise Refusal(422, f"the field `{name}` is a text or a list of texts; numbers of tokens mean nothing here")
    texts = fields.texts(name, most=MOST_TEXTS)
    if not texts:
        raise Refusal(422, f"the field `{name}` holds no text")
    return texts


def _shortened(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """The first `dimensions` numbers of each vector, at unit length again."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    if dimensions > vectors.shape[1]:
        raise Refusal(422, f"the model's vectors have {vectors.shape[1]} dimensions, fewer than {dimensions}")
    cut = vectors[:, :dimensions]
    return np.ascontiguousarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12))


def _numbers(vector: Vector) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _encoded(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
