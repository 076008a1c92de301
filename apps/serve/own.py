"""What a server tells its owner: its state (`/health`, `/metrics`, `/v1/engine`, `/v1/trace`), and over the Unix socket
only the paths below `/own` for the owner's command line and library, one for each verb."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Together
from edge.apps.collection.project import refresh
from edge.apps.collection.registry import project_collection
from edge.apps.memory.arguments import Scope, default_path
from edge.apps.memory.memory import Memory
from edge.apps.serve.connection import OWN, PROGRAM, settings_of
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.server import HttpServer
from edge.apps.verbs.memories import VERBS as MEMORY_VERBS
from edge.apps.verbs.memories import OfMemory
from edge.apps.verbs.requests import Ask, Embed, Rerank
from edge.apps.verbs.verb import VERBS, Verb, of_memory
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.resident import anonymous_resident
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker

Result = TypeVar("Result")


class TraceBody(Struct):
    """Whether the engine's work is recorded from now on."""

    record: bool | None = None


def show_trace(call: Call) -> Any:
    """Gives the recorded trace in Chrome's format, which ui.perfetto.dev opens. Recording goes on."""
    from starlette.responses import Response

    trace = call.server.trace
    if not trace.recording:
        raise HttpRefusal(404, "no trace is recorded; POST /v1/trace with `record` begins one")
    headers = {"Content-Disposition": 'attachment; filename="edge-trace.json"', "Cache-Control": "no-store"}
    return Response(trace.text(), media_type="application/json", headers=headers)


def record_trace(call: Call, body: TraceBody) -> dict[str, Any]:
    """Begins a recording anew, or ends it and forgets its events. The memory of the most events is held meanwhile."""
    recording = call.server.recording
    recording.end() if body.record is False else recording.begin()
    return recording.state()


async def engine(call: Call) -> dict[str, Any]:
    """Shows the holders of memory, the open models, the lanes, the sequences of answers, the lists of vectors, and the
    layers and candidates of the last reranking."""
    return state(call.server)


def state(server: HttpServer) -> dict[str, Any]:
    """The state of this moment: sizes in bytes, times in seconds."""
    pool, budget, counters = server.pool, server.budget, server.trace.snapshot()
    return {
        "started": server.started,
        "memory": {
            "limit": budget.limit, "used": budget.used, "free": budget.free, "resident": anonymous_resident(),
            "holders": budget.holders(),
        },
        "models": [
            {
                "kind": held.kind, "name": held.name, "open": held.is_open, "requests": held.users,
                "nbytes": held.nbytes if held.is_open else 0,
            }
            for held in pool.models()
        ],
        "lanes": {
            lane: {name: counters.get(f"{lane}.{name}", 0) for name in ("bytes", "stall_s", "hidden_s")}
            for lane in sorted({name.partition(".")[0] for name in counters if name.endswith(".stall_s")})
        },
        "answers": pool.answering(),
        "lists": server.library.pictures(),
        "counters": counters,
        "requests": {
            "open": server.requests.open, "working": server.workers.busy, "served": server.metrics.served,
        },
        "trace": server.recording.state(),
        "reranking": None if pool.picture is None else pool.picture.to_json(),
    }  # fmt: skip


async def health(call: Call) -> dict[str, Any]:
    """Tells whether the server lives, and whether a request would have room now."""
    return {"status": "ok", "ready": call.server.budget.free > 0 or call.server.workers.busy > 0}


async def metrics(call: Call) -> Any:
    """Gives counts, times and memory, as Prometheus reads them."""
    from starlette.responses import PlainTextResponse

    server = call.server
    levels = {
        "requests_open": server.requests.open,
        "requests_working": server.workers.busy,
        "models_open": sum(held.is_open for held in server.pool.models()),
    }
    text = server.metrics.text(server.budget, server.trace, levels)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


PATHS = (
    ServedPath("GET", "/v1/engine", engine),
    ServedPath("GET", "/v1/trace", show_trace),
    ServedPath("POST", "/v1/trace", record_trace, TraceBody),
    ServedPath("GET", "/health", health),
    ServedPath("GET", "/metrics", metrics),
)


async def hello(call: Call) -> dict[str, Any]:
    """Describes this server, so that a program can tell whether its results would equal those of working alone."""
    server = call.server
    return {
        "program": PROGRAM,
        "pid": os.getpid(),
        "started": server.started,
        "settings": settings_of(server.config),
        "memory": {"limit": server.budget.limit, "resident": anonymous_resident()},
        "body": server.options.limits.body,
        "seconds": server.options.limits.request_s,
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


class OwnCall(Struct, kw_only=True):
    """What a verb is asked."""

    request: dict[str, Any]


class OwnStream(OwnCall, kw_only=True):
    """What a verb is asked whose answer comes in pieces; `name` is the name by which it can be ended."""

    name: str
    stream: bool = True


class ServedHome:
    """The server as the home of one request's work (see `edge.apps.verbs.home.Home`), and its listener."""

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = name
        self.trace = call.server.trace
        self.limit = call.server.budget.limit

    def peak(self) -> int:
        return anonymous_resident()

    def troubles(self, sentences: list[str]) -> None:
        if self._call.events is not None:
            self._call.events.put("troubles", {"sentences": sentences})

    def text(self, piece: str) -> None:
        if self._call.events is not None:
            self._call.events.put("text", {"text": piece})

    @contextmanager
    def collections(self, places: Mapping[str, str], candidates: int) -> Iterator[Together]:
        yield self._call.library.together_in(_named(places))

    def refresh(self, root: str, query: str) -> None:
        self._call.library.check_served(project_collection(root))
        refresh(root, query, self._call.server.config, self._call.server.budget)

    def rerank(self, asked: Rerank, work: Callable[[Reranker], Result]) -> Result:
        return self._call.library.reranker(self._installed(asked.model) or DEFAULT_RERANKER).run(work)

    def embed(self, asked: Embed, work: Callable[[Embedder], Result]) -> Result:
        return self._call.library.embedder(self._installed(asked.model) or DEFAULT_EMBEDDER).run(work)

    def assistant(self, asked: Ask) -> AbstractContextManager[Assistant]:
        library = self._call.library
        return library.assistant(collections=library.together_in(_named(asked.collections)), pipeline=asked.pipeline)

    @contextmanager
    def memory(self, asked: OfMemory) -> Iterator[Memory]:
        library = self._call.library
        if Path(asked.path or "") != (library.memory_path or default_path()).absolute():
            raise HttpRefusal(404, f"the memory in {asked.path} is not served")
        yield library.memory().within(Scope.of(asked.ids))

    @contextmanager
    def ending(self, cancel: Callable[[], None]) -> Iterator[None]:
        writing = self._call.server.writing
        writing[self._name] = cancel
        try:
            yield
        finally:
            del writing[self._name]

    def _installed(self, model: str | None) -> str:
        """The name of an installed model; empty for the default one."""
        if model and model not in self._call.library.installed_names():
            raise HttpRefusal(404, f"it has no model {model[:80]!a}")
        return model or ""


def _named(places: Mapping[str, str] | None) -> list[tuple[str, str]]:
    if not places or any("\0" in place for place in places.values()):
        raise HttpRefusal(422, "the request names no directory of a collection")
    return list(places.items())


def _answering(verb: Verb) -> Callable[[Call, OwnCall], Any]:
    def answer(call: Call, body: OwnCall) -> Any:
        home = ServedHome(call, getattr(body, "name", ""))
        found = verb.run(home, verb.request.from_json(body.request), home)
        if isinstance(found, dict) and "vectors" in found:
            vectors = found["vectors"]
            call.hold_more(4 * vectors.nbytes)  # base64, JSON, and its bytes
            found["vectors"] = base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
        return found

    answer.__doc__ = f"Does `edge {verb.name}`."
    return answer


class OwnEndBody(Struct):
    """The name of an answer."""

    name: str


async def end(call: Call, body: OwnEndBody) -> dict[str, Any]:
    """Ends the answer of this name before its next token, for Ctrl-C in `edge ask`. Its request then gets the answer as
    written so far. `ended` is false if no answer of this name is being written."""
    cancel = call.server.writing.get(body.name)
    if cancel is not None:
        cancel()
    return {"ended": cancel is not None}


OWN_PATHS = (
    ServedPath("GET", OWN, hello),
    ServedPath("POST", f"{OWN}/status", status),
    *(
        ServedPath(
            "POST", verb.path, _answering(verb), OwnStream if verb.streams else OwnCall, for_person=True, last="answer"
        )
        for verb in (*VERBS, *map(of_memory, MEMORY_VERBS))
    ),
    ServedPath("POST", f"{OWN}/end", end, OwnEndBody),
)
