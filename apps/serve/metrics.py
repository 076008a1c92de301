"""The state of a server, for its owner: `/health`, `/metrics`, `/v1/engine` and `/v1/trace`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.budget import Lease, MemoryBudget
from edge.resident import anonymous_resident
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.serve.server import HttpServer

_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes of request times, in seconds."""


class Metrics:
    """Counts and times requests, and writes them as Prometheus reads them. Thread-safe."""

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        """`known`: paths that are counted by name; every other one counts as `other`."""
        self.known = known
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        """Notes a request that has ended."""
        name = path if path in self.known else "other"
        method = method if method in ("GET", "POST", "PUT", "DELETE", "PATCH") else "other"
        with self._lock:
            self._requests[name, method, status] += 1
            for bound in _BOUNDS:
                self._within[name, bound] += seconds <= bound
            self._seconds[name] += seconds  # type: ignore[assignment]

    @property
    def served(self) -> int:
        """Requests that have ended."""
        with self._lock:
            return sum(self._requests.values())

    def text(self, budget: MemoryBudget, trace: Trace, levels: Mapping[str, float]) -> str:
        """Everything in Prometheus' text format.

        Args:
            levels: further quantities of this moment, by name.
        """
        lines = [
            "# TYPE edge_memory_limit_bytes gauge", f"edge_memory_limit_bytes {budget.limit}",
            "# TYPE edge_memory_leased_bytes gauge",
            *(f'edge_memory_leased_bytes{{owner="{_label(name)}"}} {size}' for name, size in budget.holders().items()),
            "# TYPE edge_memory_resident_bytes gauge", f"edge_memory_resident_bytes {anonymous_resident()}",
        ]  # fmt: skip
        for name, value in levels.items():
            lines += [f"# TYPE edge_{name} gauge", f"edge_{name} {value:g}"]
        with self._lock:
            lines.append("# TYPE edge_requests_total counter")
            for (path, method, status), count in sorted(self._requests.items()):
                lines.append(f'edge_requests_total{{path="{path}",method="{method}",status="{status}"}} {count}')
            lines.append("# TYPE edge_request_seconds histogram")
            counts: Counter[str] = Counter()
            for (path, _, _), count in self._requests.items():
                counts[path] += count
            for path, count in sorted(counts.items()):
                lines += [
                    f'edge_request_seconds_bucket{{path="{path}",le="{bound:g}"}} {self._within[path, bound]}'
                    for bound in _BOUNDS
                ]
                lines += [
                    f'edge_request_seconds_bucket{{path="{path}",le="+Inf"}} {count}',
                    f'edge_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}',
                    f'edge_request_seconds_count{{path="{path}"}} {count}',
                ]
        lines.append("# TYPE edge_engine_total counter")
        for name, amount in sorted(trace.snapshot().items()):
            lines.append(f'edge_engine_total{{counter="{_label(name)}"}} {amount:g}')
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


MOST_EVENTS = 8192
"""A reranking of 60 passages by a model of 12 layers has about 100."""

_EVENT_BYTES = 1536
"""Memory of a recorded event: its objects, and its text twice while the file is written."""


class TraceRecording:
    """A recording of the engine's work. The memory of the most events is held meanwhile.

    Source of the format: Chrome's trace events, which ui.perfetto.dev opens.
    """

    def __init__(self, trace: Trace, budget: MemoryBudget) -> None:
        self.trace = trace
        self._lease: Lease = budget.reserve("trace", 0)

    def state(self) -> dict[str, Any]:
        """Whether a trace is recorded, and the number of its events."""
        return {"recording": self.trace.recording, "events": self.trace.recorded, "most": MOST_EVENTS}

    def begin(self) -> None:
        """Begins anew."""
        self._lease.resize(MOST_EVENTS * _EVENT_BYTES)
        self.trace.record(MOST_EVENTS)

    def end(self) -> None:
        """Ends the recording and forgets its events."""
        self.trace.forget()
        self._lease.release()


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
    """Shows the holders of memory, the open models, the lanes, and the layers and candidates of the last reranking."""
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
