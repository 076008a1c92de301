"""`Recording`: the trace of the engine's work, recorded on request, as a file for trace viewers."""

from __future__ import annotations

from typing import Any

from edge.apps.serve.endpoint import Call
from edge.apps.serve.fields import Fields
from edge.apps.serve.refusals import Refusal
from edge.budget import Lease, MemoryBudget
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
