"""The dialect of text-embeddings-inference: `/rerank` with `texts`, `/embed`, `/info`."""

from __future__ import annotations

import importlib.metadata
import math
from typing import Annotated, Any

from msgspec import Meta, Struct

from edge.apps.serve.body import MOST_ENTRIES, Whole, with_idle
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.openai import MOST_TEXTS, QUERIES, Input, embedded, texts_of
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.rerank import RerankBody, ranked, rerank

_CUT: dict[str, tuple[Any, ...]] = {"truncate": (True,), "truncation_direction": ("right", "Right")}
"""Texts are always cut at their end to the model's length."""


@with_idle(_CUT)
class TeiRerankBody(RerankBody, kw_only=True):
    """`texts` to rank, or `documents` in the shape of Jina and Cohere."""

    documents: Annotated[list[str | dict[str, Any]], Meta(max_length=MOST_ENTRIES)] | None = None  # type: ignore[assignment]
    texts: Annotated[list[str], Meta(max_length=MOST_ENTRIES)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None


@with_idle({**_CUT, "normalize": (True,)})
class EmbedBody(Struct, kw_only=True):
    """Texts to embed."""

    inputs: Input
    dimensions: Whole | None = None
    prompt_name: str | None = None


def rerank_texts(call: Call, body: TeiRerankBody) -> Any:
    """Ranks `texts` in the shape of text-embeddings-inference, or `documents` in the shape of `/v1/rerank`."""
    if body.documents is not None:
        return rerank(call, body)
    if body.texts is None:
        raise HttpRefusal(422, "the field `documents` is missing")
    query = body.query if isinstance(body.query, str) else body.query.text
    results = []
    for found in ranked(call, body.model, query, body.texts).results:
        result: dict[str, Any] = {
            "index": found.index,
            "score": _logit(found.score) if body.raw_scores else found.score,
        }
        if body.return_text:
            result["text"] = body.texts[found.index]
        results.append(result)
    return results


def _logit(score: float) -> float:
    score = min(max(score, 1e-12), 1 - 1e-12)
    return math.log(score / (1 - score))


def embed(call: Call, body: EmbedBody) -> Any:
    """Embeds `inputs`: one vector of unit length for each text."""
    texts = texts_of(body.inputs, "inputs")
    return embedded(call, "", texts, body.prompt_name in QUERIES, body.dimensions)[0]


_TYPES = {"int8": "int8", "fp16": "float16", "fp32": "float32"}
_POOLINGS = {"mean": "mean", "first-token": "cls", "last-token": "last_token"}
"""The names of precisions and poolings in text-embeddings-inference."""


def info(call: Call) -> dict[str, Any]:
    """Describes the embedder, which is opened for it, as text-embeddings-inference describes its model."""
    held = call.library.embedder()
    spec, longest = held.run(lambda embedder: (embedder.model.spec, embedder.engine.max_tokens))
    return {
        "model_id": held.name,
        "model_sha": None,
        "model_dtype": _TYPES[spec.layer.precision],
        "model_type": {
            "embedding": {"pooling": _POOLINGS[spec.head.kind]}, "reranker": {"model_id": call.library.reranker().name},
        },
        "max_concurrent_requests": call.server.options.limits.connections,
        "max_input_length": longest,
        "max_batch_tokens": longest * MOST_TEXTS,
        "max_client_batch_size": MOST_TEXTS,
        "auto_truncate": True,
        "version": importlib.metadata.version("edge-rag"),
    }  # fmt: skip


def tei(status: int, message: str) -> dict[str, Any]:
    kinds = {413: "Validation", 422: "Validation", 429: "Overloaded", 424: "Backend"}
    return {"error": message, "error_type": kinds.get(status, "Validation" if status < 500 else "Backend")}


PATHS = (
    ServedPath("POST", "/rerank", rerank_texts, TeiRerankBody, shape=tei),
    ServedPath("POST", "/embed", embed, EmbedBody, shape=tei),
    ServedPath("GET", "/info", info, shape=tei),
)
