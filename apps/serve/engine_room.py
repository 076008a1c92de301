"""`/v1/engine`: who holds which bytes, what the lanes did, which models are open, and the last reranking's picture."""

from __future__ import annotations

import time
from typing import Any

from edge.apps.serve.body import Requests
from edge.apps.serve.endpoint import Call
from edge.apps.serve.lent import ModelPool
from edge.apps.serve.metrics import Metrics
from edge.apps.serve.recording import Recording
from edge.apps.serve.working import Workers
from edge.resident import anonymous_resident


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
