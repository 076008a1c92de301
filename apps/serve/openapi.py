"""The OpenAPI document of the server, made from its paths: what a handler's docstring says is what clients read."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Sequence
from typing import Any

from edge.apps.serve.endpoint import Operation

_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_CONTENT: dict[str, dict[str, Any]] = {"/v1/page": {"image/png": {}}, "/metrics": {"text/plain": {}}}
"""What an answer is, by path, where it is not a JSON object."""


def described(paths: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        summary = " ".join((inspect.getdoc(path.handler) or "").split())
        operation: dict[str, Any] = {
            "summary": summary.partition(". ")[0].rstrip("."),
            "description": summary,
            "operationId": f"{path.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path.path)}",
            "responses": {
                "200": {"description": "Done.", "content": _CONTENT.get(path.path, _JSON)},
                "4XX": {"description": "Refused: one sentence says why."},
            },
        }
        names, template = _PARAMETER.findall(path.path), _PARAMETER.sub(r"{\1}", path.path)
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if path.method in ("POST", "PUT"):
            schema = SCHEMAS.get(path.path, {"type": "object"})
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        found.setdefault(template, {})[path.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edge-rag",
            "version": importlib.metadata.version("edge-rag"),
            "description": "Reranking, embeddings, search, answers and memory within one memory limit.",
        },
        "paths": found,
    }


def _schema(required: Sequence[str], **properties: str) -> dict[str, Any]:
    """An object's schema; types by their names, lists of texts as `texts`."""
    texts = {"type": "array", "items": {"type": "string"}}
    made = {
        name: texts if kind == "texts" else {} if kind == "any" else {"type": kind} for name, kind in properties.items()
    }
    return {"type": "object", "required": list(required), "properties": made}


_RERANK = _schema(
    ["query", "documents"], model="string", query="string", documents="array", top_n="integer",
    return_documents="boolean",
)  # fmt: skip
_ANY_RERANK = {
    "oneOf": [
        _RERANK,
        _schema(["query", "texts"], query="string", texts="texts", raw_scores="boolean", return_text="boolean"),
    ]
}
_MEMORY = _schema(
    ["messages"], messages="any", user_id="string", agent_id="string", run_id="string", metadata="object",
)  # fmt: skip
_MEMORY_SEARCH = _schema(
    ["query"], query="string", user_id="string", agent_id="string", run_id="string", filters="object",
    top_k="integer", threshold="number", rerank="boolean",
)  # fmt: skip

SCHEMAS: dict[str, dict[str, Any]] = {
    "/rerank": _ANY_RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/v1/search": _schema(
        ["query"], query="string", collections="texts", top_k="integer", pool="integer", filters="texts",
        rerank="boolean", min_score="number", min_blended="number", stream="boolean",
    ),
    "/v1/ask": _schema(
        ["question"], question="string", collection="string", llm="string", pipeline="string", passages="integer",
        filters="texts", min_score="number", rerank="boolean", check="boolean", temperature="number",
        max_tokens="integer", seed="integer", turns="array", stream="boolean",
    ),
    "/v1/documents": _schema(
        ["targets"], targets="texts", collections="texts", lines="integer", max_bytes="integer",
    ),
    "/v1/preview": _schema(
        [], collection="string", id="integer", path="string", line="integer", max_bytes="integer",
    ),
    "/v1/open": _schema(["path"], collection="string", path="string", line="integer", page="integer"),
    "/v1/page": _schema(
        ["path"], collection="string", path="string", page="integer", first="integer", last="integer",
    ),
    "/memories": _MEMORY,
    "/v1/memories": _MEMORY,
    "/search": _MEMORY_SEARCH,
    "/v1/memories/search": _MEMORY_SEARCH,
}  # fmt: skip
"""What the bodies of requests hold, by path."""
