"""What models do without texts of the user's: scores and vectors, in the shapes of the services that have them, and the
models that are here. Jina, Cohere (both versions), vLLM and llama.cpp rerank in one shape but for the errors:
`/v1/rerank`, `/v2/rerank`, `/v1/reranking`, and `/rerank` beside the shape of text-embeddings-inference, which has
`/embed` and `/info`, too; infinity's is `/infinity/rerank`. vLLM's `/score` judges pairs of texts. OpenAI's are
`/v1/embeddings` and `/v1/models`; Ollama's `/api/tags` and `/api/show` of the models that are here, `/api/embed`, and
`/api/rerank` as it was proposed for Ollama."""

from __future__ import annotations

import base64
import importlib.metadata
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from edge.apps.serve.body import MOST_ENTRIES, Texts, Whole, as_list, with_idle
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.library import OWN_LLM
from edge.apps.serve.refusals import HttpRefusal, cohere, jina, ollama, openai, tei
from edge.errors import EdgeError
from edge.models.packed import PackedModel
from edge.models.registry import KNOWN, installed, installed_generators
from edge.runtimes.embedder import Embedder
from edge.runtimes.passes import RunStats
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


Vectors = npt.NDArray[np.float32]

MOST_TEXTS = 8192
_FLOAT_BYTES, _BASE64_BYTES = 32, 8
"""Memory of one number of an answer: its text twice, and as base64 likewise."""

QUERIES = ("query", "search_query", "retrieval.query")
"""By which clients say that texts are questions: TEI's prompt names, Cohere's input types, Jina's tasks."""

Input = Annotated[
    str | Annotated[list[str | int | list[int]], Meta(max_length=MOST_TEXTS)],
    Meta(description="Texts. Numbers of tokens are refused: they mean other words to another model."),
]


@with_idle(harmless=("user",))
class EmbeddingsBody(Struct, kw_only=True):
    """Texts to embed, also with Jina's `task` or Cohere's `input_type`."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    task: str | None = None
    input_type: str | None = None


def embeddings(call: Call, body: EmbeddingsBody) -> dict[str, Any]:
    """Embeds texts: one vector of unit length for each. With fewer `dimensions` the first numbers are given, at unit
    length again."""
    texts, query = texts_of(body.input, "input"), (body.task or body.input_type) in QUERIES
    encoded = body.encoding_format == "base64"
    found, tokens = embedded(call, body.model or "", texts, query, body.dimensions, encoded=encoded)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    model = body.model or call.library.served_embedder("").name
    return {"object": "list", "data": data, "model": model, "usage": usage}


def texts_of(given: Input, name: str) -> list[str]:
    given = [given] if isinstance(given, str) else given
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise HttpRefusal(
            422,
            f"the field `{name}` holds numbers of tokens, which mean other words to another model: send the texts "
            f"(in LangChain's OpenAIEmbeddings with check_embedding_ctx_length=False)",
        )
    if not texts:
        raise HttpRefusal(422, f"the field `{name}` holds no text")
    return texts


def embedded(
    call: Call, model: str, texts: list[str], query: bool, dimensions: int | None, *, encoded: bool = False
) -> tuple[list[Any], int]:
    """The vectors of texts as JSON has them, in base64 if `encoded`; and the number of tokens."""
    passes: list[RunStats] = []
    held = call.lease.nbytes

    def embed(embedder: Embedder) -> Vectors:
        # Before the work: a request whose answer has no room must not cost the others any time.
        answer = len(texts) * embedder.dim * (_BASE64_BYTES if encoded else _FLOAT_BYTES)
        call.server.requests.hold(call.lease, held + answer)
        return embedder.embed(texts, query=query, watch=passes.append)

    vectors = call.library.served_embedder(model).run(embed)
    each = _in_base64 if encoded else _as_json
    written: list[Any] = []
    for vector in _shortened(vectors, dimensions):
        call.urgency.check()
        written.append(each(vector))
    return written, sum(stats.tokens for stats in passes)


def _shortened(vectors: Vectors, dimensions: int | None) -> Vectors:
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    if dimensions > vectors.shape[1]:
        raise HttpRefusal(422, f"the model's vectors have {vectors.shape[1]} dimensions, fewer than {dimensions}")
    cut = vectors[:, :dimensions]
    return np.ascontiguousarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12))


def _as_json(vector: Vectors) -> msgspec.Raw:
    """One vector as JSON, written alone, so that other threads run between two of them."""
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))


def _in_base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def models(call: Call) -> dict[str, Any]:
    """Lists the names that `model` may have: collections to answer from, generators, rerankers and embedders."""
    library = call.library
    names = [*library.names(), OWN_LLM, *library.pulled_generators(), *library.installed_names()]
    made = [{"id": name, "object": "model", "created": 0, "owned_by": "edge-rag"} for name in dict.fromkeys(names)]
    return {"object": "list", "data": made}


def model(call: Call) -> dict[str, Any]:
    """Describes one of the names that `model` may have."""
    name = call.named("name")
    for found in models(call)["data"]:
        if found["id"] == name:
            return dict(found)
    raise HttpRefusal(404, f"there is no model {name[:80]!a}; /v1/models lists the names")


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


_SETTINGS = ("options", "keep_alive")
"""Of Ollama's own runtime. The server's memory limit decides how long a model stays open."""


@with_idle({"truncate": (True,)}, _SETTINGS)
class OllamaEmbedBody(Struct, kw_only=True):
    """Texts to embed; they are cut at their end to the model's length."""

    input: Input
    model: str | None = None
    dimensions: Whole | None = None


@with_idle({"instruction": ("",)}, _SETTINGS)
class OllamaRerankBody(RerankBody, kw_only=True):
    """Documents to rank."""


def embed_ollama(call: Call, body: OllamaEmbedBody) -> dict[str, Any]:
    """Embeds `input`: one vector of unit length for each text. Times are in nanoseconds."""
    started = time.perf_counter_ns()
    found, tokens = embedded(call, _untagged(body.model), texts_of(body.input, "input"), False, body.dimensions)
    return {
        "model": body.model or call.library.served_embedder("").name,
        "embeddings": found,
        "total_duration": time.perf_counter_ns() - started,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


@with_idle(harmless=("verbose", "system", "template", "options"))
class OllamaShowBody(Struct, kw_only=True):
    """The name of a model, as `model` or in the older way as `name`."""

    model: str | None = None
    name: str | None = None


def tags(call: Call) -> dict[str, Any]:
    """Lists the models that are here. One that is damaged is left out."""
    shown = ("name", "model", "modified_at", "size", "digest", "details")
    return {"models": [{name: entry[name] for name in shown} for entry in _entries(call)]}


def show(call: Call, body: OllamaShowBody) -> dict[str, Any]:
    """Describes a model that is here."""
    name = _untagged(body.model or body.name)
    for entry in _entries(call):
        if entry["name"] == name:
            return entry
    raise HttpRefusal(404, f"model {name[:80]!a} not found; /api/tags lists the names")


def _untagged(name: str | None) -> str:
    return (name or "").removesuffix(":latest")


def _entries(call: Call) -> list[dict[str, Any]]:
    folder = call.library.pool.config.models_dir or None
    found: dict[str, dict[str, Any]] = {}
    for name, path in (*installed(folder), *installed_generators(folder)):
        with suppress(EdgeError):
            found.setdefault(name, _entry(name, path))
    return list(found.values())


def _entry(name: str, path: Path) -> dict[str, Any]:
    known = KNOWN.get(name)
    family: str
    precision: str
    if path.is_dir():
        with PackedModel.open(path) as packed:
            spec, size, digest = packed.spec, packed.nbytes, packed.fingerprint
            capabilities = ["embedding"] if packed.kind == "embedder" else []
        family, precision, count = spec.architecture, spec.layer.precision, f"{spec.parameters() / 1e6:.1f}M"
        facts = {"context_length": spec.max_tokens, "embedding_length": spec.layer.hidden}
    else:
        from edge.models.gguf_file import GGUFFile

        header = GGUFFile.open(path)
        size, family, precision, count, capabilities = header.nbytes, header.architecture or "", "", "", ["completion"]
        digest = (known and known.files and next(iter(known.files.values()))) or ""
        facts = {"context_length": header.trained_context}
    details = {
        "parent_model": "", "format": "edge" if path.is_dir() else "gguf", "family": family, "families": [family],
        "parameter_size": count, "quantization_level": precision,
    }  # fmt: skip
    return {
        "name": name, "model": name, "size": size, "digest": digest, "details": details, "capabilities": capabilities,
        "modified_at": datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(), "parameters": "",
        "template": "", "license": known.licence if known else "",
        "model_info": {"general.architecture": family, **{f"{family}.{fact}": value for fact, value in facts.items()}},
    }  # fmt: skip


PATHS = (
    *(
        ServedPath("POST", path, rerank, RerankBody, shape=jina)
        for path in ("/v1/rerank", "/v1/reranking", "/reranking", _INFINITY)
    ),
    *(ServedPath("POST", path, score, ScoreBody, shape=jina) for path in ("/score", "/v1/score")),
    ServedPath("POST", "/v2/rerank", rerank, RerankBody, shape=cohere),
    ServedPath("POST", "/v1/embeddings", embeddings, EmbeddingsBody, shape=openai),
    ServedPath("GET", "/v1/models", models, shape=openai),
    ServedPath("GET", "/v1/models/{name:path}", model, shape=openai),
    ServedPath("POST", "/rerank", rerank_texts, TeiRerankBody, shape=tei),
    ServedPath("POST", "/embed", embed, EmbedBody, shape=tei),
    ServedPath("GET", "/info", info, shape=tei),
    ServedPath("GET", "/api/tags", tags, shape=ollama),
    ServedPath("POST", "/api/show", show, OllamaShowBody, shape=ollama),
    ServedPath("POST", "/api/embed", embed_ollama, OllamaEmbedBody, shape=ollama),
    ServedPath("POST", "/api/rerank", rerank, OllamaRerankBody, shape=ollama),
)
