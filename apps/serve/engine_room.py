"""`/v1/engine`: who holds which bytes, what the lanes did, which models are open, and the last reranking's picture."""

from __future__ import annotations

import time
from typing import Any

from edge.apps.serve.body import Requests
from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields
from edge.apps.serve.lent import ModelPool
from edge.apps.serve.metrics import Metrics
from edge.apps.serve.refusals import Refusal
from edge.apps.serve.working import Workers
from edge.budget import Lease, MemoryBudget
from edge.resident import anonymous_resident
from edge.trace import Trace

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
