"""Ollama's dialect: `/api/embed`, and `/api/rerank` as it was proposed for Ollama."""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct

from edge.apps.serve.body import Whole, with_idle
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.openai import Input, embedded, texts_of
from edge.apps.serve.rerank import RerankBody, rerank

_SETTINGS = ("options", "keep_alive")
"""Settings of Ollama's own runtime. The server's memory limit decides how long a model stays open."""


@with_idle({"truncate": (True,)}, _SETTINGS)
class OllamaEmbedBody(Struct, kw_only=True):
    """Texts to embed; they are cut at their end to the model's length."""

    input: Input
    model: str | None = None
    dimensions: Whole | None = None


@with_idle({"instruction": ("",)}, _SETTINGS)
class OllamaRerankBody(RerankBody, kw_only=True):
    """Documents to rank."""


def embed(call: Call, body: OllamaEmbedBody) -> dict[str, Any]:
    """Embeds `input`: one vector of unit length for each text. Times are in nanoseconds."""
    started = time.perf_counter_ns()
    found, tokens = embedded(call, body.model or "", texts_of(body.input, "input"), False, body.dimensions)
    return {
        "model": body.model or call.library.served_embedder("").name,
        "embeddings": found,
        "total_duration": time.perf_counter_ns() - started,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


def ollama(status: int, message: str) -> dict[str, Any]:
    """An error as Ollama writes it."""
    return {"error": message}


PATHS = (
    ServedPath("POST", "/api/embed", embed, OllamaEmbedBody, shape=ollama),
    ServedPath("POST", "/api/rerank", rerank, OllamaRerankBody, shape=ollama),
)
