"""The paths below `/own`, for the command line and the library of the server's own user, over the Unix socket only.

The answers hold everything that a command prints, so that it prints the same with a server and without one.
"""

from __future__ import annotations

import base64
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from edge.apps.assistant.answer import figures as answer_figures
from edge.apps.assistant.answer import notices
from edge.apps.commands.searching import figures, look
from edge.apps.memory.arguments import Scope, default_path
from edge.apps.memory.console import READS, WRITES
from edge.apps.requests import AskOptions, SearchOptions
from edge.apps.serve.body import MOST_ENTRIES, PathText, Whole, options_of, with_options
from edge.apps.serve.connection import OWN, PROGRAM, settings_of
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.search import written
from edge.apps.serve.state import state
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.resident import anonymous_resident
from edge.runtimes.passes import RunStats

_MOST_TEXTS = 100_000
"""Texts of the user's own programs. A program with more does its work itself."""

_ManyTexts = Annotated[list[str], Meta(max_length=_MOST_TEXTS)]


async def hello(call: Call) -> dict[str, Any]:
    """Describes this server, so that a program can tell whether its results would equal those of working alone."""
    server = call.server
    return {
        "program": PROGRAM,
        "pid": os.getpid(),
        "started": server.started,
        "settings": settings_of(server.config),
        "memory": {"limit": server.budget.limit, "resident": anonymous_resident()},
        "body": server.limits.body,
        "seconds": server.limits.request_s,
    }


async def status(call: Call) -> dict[str, Any]:
    """Describes for `edge serve --status` the process, the requests, the models and the collections."""
    room = state(call.server)
    return {
        **await hello(call),
        "url": call.server.url,
        "requests": room["requests"],
        "models": [model for model in room["models"] if model["open"]],
        "collections": call.library.described(),
        "memory_path": str(call.library.memory_path or default_path()),
    }


_Places = Annotated[list[tuple[str, PathText]], Meta(min_length=1, max_length=MOST_ENTRIES)]
"""Collections as pairs of name and directory."""


@with_options(SearchOptions)
class OwnSearchBody(Struct, kw_only=True):
    """A search of `edge search`."""

    query: str
    collections: _Places


def search(call: Call, body: OwnSearchBody) -> dict[str, Any]:
    """Searches as `edge search`: results with the state of each collection and the figures. The figures of the stages
    are those of the server in that time, other requests included."""
    trace = call.server.trace
    started, before = time.perf_counter(), trace.snapshot()
    collections = call.library.together_in(body.collections)
    found = look(collections, body.query, options_of(body, SearchOptions))
    seconds, after = time.perf_counter() - started, trace.snapshot()
    found.figures.update(figures(after, before, seconds, anonymous_resident(), call.server.budget.limit))
    return found.to_json()


class OwnRerankBody(Struct, kw_only=True):
    """Texts that `edge rerank` ranks."""

    query: str
    texts: _ManyTexts
    mode: Literal["ranked", "top-k"]
    threshold: str
    top_k: Whole | None = None
    model: str | None = None
    retrieved: bool = False


def rerank(call: Call, body: OwnRerankBody) -> dict[str, Any]:
    """Ranks as `edge rerank`: places, scores and relevance, best first, with the figures of the pass."""
    found = call.library.reranker(_installed(call, body.model) or DEFAULT_RERANKER).run(
        lambda reranker: reranker.explain(
            body.query, body.texts, body.top_k, retrieved=body.retrieved, mode=body.mode, threshold=body.threshold
        )
    )
    results = [[result.index, result.score, result.relevance] for result in found.results]
    return {"results": results, "stats": found.stats.to_json()}


class OwnEmbedBody(Struct, kw_only=True):
    """Texts that `edge embed` embeds."""

    texts: Annotated[_ManyTexts, Meta(min_length=1)]
    query: bool = False
    model: str | None = None


def embed(call: Call, body: OwnEmbedBody) -> dict[str, Any]:
    """Embeds as `edge embed`: the vectors as float32 in base64, with the figures of the last pass."""
    passes: list[RunStats] = []
    vectors = call.library.embedder(_installed(call, body.model) or DEFAULT_EMBEDDER).run(
        lambda embedder: embedder.embed(body.texts, query=body.query, watch=passes.append)
    )
    call.hold_more(4 * vectors.nbytes)  # base64, JSON, and its bytes
    encoded = base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
    return {"vectors": encoded, "stats": passes[-1].to_json()}


def _installed(call: Call, model: str | None) -> str:
    """The name of an installed model; empty for the one that a program takes if nobody names one.

    Raises:
        HttpRefusal: it is not installed, or is a path.
    """
    if model and model not in call.library.installed_names():
        raise HttpRefusal(404, f"it has no model {model[:80]!a}")
    return model or ""


@with_options(AskOptions)
class OwnAskBody(Struct, kw_only=True):
    """A question of `edge ask`; `name` is the name by which it can be ended."""

    question: str
    collections: _Places
    pipeline: str
    name: str
    stream: bool = True


def ask(call: Call, body: OwnAskBody) -> dict[str, Any]:
    """Answers as `edge ask`: an event `text` for each piece of the answer, then `answer` with all that is printed of
    it."""
    events, writing = call.events, call.server.writing
    if events is None:
        raise HttpRefusal(422, "the answer is a stream")
    options = options_of(body, AskOptions)
    with call.library.assistant_in(body.collections, body.pipeline) as assistant:
        health = assistant.collection.health()
        troubles = [str(trouble) for trouble in health]
        stream = assistant.chat(options=options).stream(body.question)
        writing[body.name] = stream
        try:
            answer = written(stream, lambda text: events.put("text", {"text": text, "troubles": troubles}))
        finally:
            del writing[body.name]
    return {
        "document": answer.to_json() | {"health": health.to_json()},
        "citations": [asdict(citation) for citation in answer.citations],
        "notices": list(notices(answer)),
        "figures": list(answer_figures(answer.stats)),
        "troubles": troubles,
    }


class OwnEndBody(Struct):
    """The name of an answer."""

    name: str


async def end(call: Call, body: OwnEndBody) -> dict[str, Any]:
    """Ends the answer of this name before its next token, for Ctrl-C in `edge ask`. Its request then gets the answer as
    written so far. `ended` is false if no answer of this name is being written."""
    stream = call.server.writing.get(body.name)
    if stream is not None:
        stream.cancel()
    return {"ended": stream is not None}


class OwnMemoryBody(Struct, kw_only=True):
    """One verb of the memory in the directory `path`, with its arguments."""

    verb: str
    path: PathText
    arguments: Annotated[list[Any], Meta(max_length=MOST_ENTRIES)]
    named: dict[str, Any]
    scope: dict[str, Any]


def memory(call: Call, body: OwnMemoryBody) -> dict[str, Any]:
    """Does one verb of `edge memory`, and tells the state of the memory."""
    if body.verb not in READS | WRITES:
        raise HttpRefusal(422, f"{body.verb[:40]!a} is not called in this way")
    if Path(body.path) != (call.library.memory_path or default_path()).absolute():
        raise HttpRefusal(404, f"the memory in {body.path} is not served")
    memory = call.library.memory().within(Scope.of(body.scope))
    result = getattr(memory, body.verb)(*body.arguments, **body.named)
    return {"result": result, "health": [asdict(trouble) for trouble in memory.health()]}


PATHS = (
    ServedPath("GET", OWN, hello),
    ServedPath("POST", f"{OWN}/status", status),
    ServedPath("POST", f"{OWN}/search", search, OwnSearchBody, for_person=True),
    ServedPath("POST", f"{OWN}/rerank", rerank, OwnRerankBody, for_person=True),
    ServedPath("POST", f"{OWN}/embed", embed, OwnEmbedBody, for_person=True),
    ServedPath("POST", f"{OWN}/ask", ask, OwnAskBody, for_person=True, last="answer"),
    ServedPath("POST", f"{OWN}/end", end, OwnEndBody),
    ServedPath("POST", f"{OWN}/memory", memory, OwnMemoryBody, for_person=True),
)
