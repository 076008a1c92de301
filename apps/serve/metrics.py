"""What a server counts and records: `Metrics` of its requests, `TraceRecording` of its engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from edge.budget import Lease, MemoryBudget
from edge.resident import anonymous_resident
from edge.trace import Trace

_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes of request times, in seconds."""


class Metrics:
    """Counts and times requests, and writes them as Prometheus reads them. Thread-safe."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
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
        """Everything in Prometheus' text format."""
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
