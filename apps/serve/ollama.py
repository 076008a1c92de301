"""Ollama's dialect: `/api/tags` and `/api/show` of the models that are here, `/api/embed`, and `/api/rerank` as it was
proposed for Ollama."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from msgspec import Struct

from edge.apps.serve.body import Whole, with_idle
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.openai import Input, embedded, texts_of
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.rerank import RerankBody, rerank
from edge.errors import EdgeError
from edge.models.packed import PackedModel
from edge.models.registry import KNOWN, installed, installed_generators

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


def ollama(status: int, message: str) -> dict[str, Any]:
    return {"error": message}


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
        "modified_at": datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(), "parameters": "",
        "template": "", "license": known.licence if known else "",
        "model_info": {"general.architecture": family, **{f"{family}.{fact}": value for fact, value in facts.items()}},
    }  # fmt: skip


PATHS = (
    ServedPath("GET", "/api/tags", tags, shape=ollama),
    ServedPath("POST", "/api/show", show, OllamaShowBody, shape=ollama),
    ServedPath("POST", "/api/embed", embed_ollama, OllamaEmbedBody, shape=ollama),
    ServedPath("POST", "/api/rerank", rerank, OllamaRerankBody, shape=ollama),
)
