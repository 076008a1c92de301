"""The state of a server, for its owner: `/health`, `/metrics`, `/v1/engine` and `/v1/trace`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.server import HttpServer
from edge.resident import anonymous_resident


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
