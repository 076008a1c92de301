"""What can be seen of a server: `/metrics`, `/v1/engine` and `/v1/trace`.

`Metrics` counts and times requests, and writes them with what the engine counted, as Prometheus reads them.
`EngineRoom` shows who holds which bytes, what the lanes did, which models are open, and the last reranking's picture.
`Recording` answers with a trace.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from edge.apps.serve.body import Requests
from edge.apps.serve.endpoint import Call
from edge.apps.serve.json_values import Fields
from edge.apps.serve.lent import ModelPool
from edge.apps.serve.refusals import Refusal
from edge.apps.serve.working import Workers
from edge.budget import Lease, MemoryBudget
from edge.resident import anonymous_resident
from edge.trace import Trace

_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes of request times, in seconds."""


class Metrics:
    """Thread-safe."""

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


class Recording:
    """The endpoint of one server."""

    def __init__(self, trace: Trace, budget: MemoryBudget) -> None:
        self._trace = trace
        self._lease: Lease = budget.reserve("trace", 0)

    async def get(self, call: Call) -> Any:
        """The recorded trace in Chrome's format, which ui.perfetto.dev opens. Recording goes on."""
        from starlette.responses import Response

        if not self._trace.recording:
            raise Refusal(404, "no trace is recorded; POST /v1/trace with `record` begins one")
        text = await call.requests.aside(self._trace.text)
        headers = {"Content-Disposition": 'attachment; filename="edge-trace.json"', "Cache-Control": "no-store"}
        return Response(text, media_type="application/json", headers=headers)

    async def post(self, call: Call) -> dict[str, Any]:
        """Begins a recording anew, or ends it and forgets its events. The memory of the most events is held
        meanwhile."""
        wanted = Fields(await call.json()).flag("record", True)
        await call.done(self._begin if wanted else self._end)
        return self.state()

    def state(self) -> dict[str, Any]:
        """Whether a trace is recorded, and the number of its events."""
        return {"recording": self._trace.recording, "events": self._trace.recorded, "most": MOST_EVENTS}

    def _begin(self) -> None:
        self._lease.resize(MOST_EVENTS * _EVENT_BYTES)
        self._trace.record(MOST_EVENTS)

    def _end(self) -> None:
        self._trace.forget()
        self._lease.release()


class EngineRoom:
    """What can be seen of one server."""

    def __init__(
        self, pool: ModelPool, requests: Requests, workers: Workers, metrics: Metrics, recording: Recording
    ) -> None:
        self._pool = pool
        self._recording = recording
        self._requests = requests
        self._workers = workers
        self._metrics = metrics
        self._started = time.time()

    async def get(self, call: Call) -> dict[str, Any]:
        """The state of this moment."""
        return self.state()

    def state(self) -> dict[str, Any]:
        """Sizes in bytes, times in seconds."""
        pool = self._pool
        counters = pool.trace.snapshot()
        return {
            "started": self._started,
            "memory": {
                "limit": pool.budget.limit,
                "used": pool.budget.used,
                "free": pool.budget.free,
                "resident": anonymous_resident(),
                "holders": pool.budget.holders(),
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
            "requests": {"open": self._requests.open, "working": self._workers.busy, "served": self._metrics.served},
            "trace": self._recording.state(),
            "reranking": None if pool.picture is None else pool.picture.to_json(),
        }  # fmt: skip

    def levels(self) -> dict[str, float]:
        """Quantities of this moment, for `Metrics`."""
        return {
            "requests_open": self._requests.open,
            "requests_working": self._workers.busy,
            "models_open": sum(held.is_open for held in self._pool.models()),
        }
