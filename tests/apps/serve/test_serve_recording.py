"""`/v1/trace`: the engine's work, recorded on request."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from edge.apps.serve.server import MOST_EVENTS, TraceRecording
from edge.budget import MemoryBudget
from edge.trace import Trace
from tests.apps.serve.conftest import Running

ASKED = {"query": "river", "documents": ["a", "b"]}


def test_it_begins_and_ends_on_request(start_server: Callable[..., Running], tmp_path: Path) -> None:
    with start_server(runtime=tmp_path / "run").client() as client:
        assert client.get("/v1/trace").status_code == 404
        assert client.get("/v1/engine").json()["trace"] == {"recording": False, "events": 0, "most": MOST_EVENTS}
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        assert client.post("/v1/trace", json={}).json() == {"recording": True, "events": 0, "most": MOST_EVENTS}
        held = client.get("/v1/engine").json()["memory"]["holders"]["trace"]
        assert held >= MOST_EVENTS * 1000
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        answer = client.get("/v1/trace")
        assert answer.headers["content-disposition"] == 'attachment; filename="edge-trace.json"'
        names = {event["name"] for event in answer.json()["traceEvents"]}
        assert {"embed", "layer 0", "memory"} <= names
        assert client.get("/v1/engine").json()["trace"]["events"] >= 3, "reading it does not end it"
        assert not client.post("/v1/trace", json={"record": False}).json()["recording"]
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        engine = client.get("/v1/engine").json()
        assert engine["trace"]["events"] == 0
        assert engine["memory"]["holders"].get("trace", 0) == 0
        assert client.get("/v1/trace").status_code == 404
        assert client.post("/v1/trace", json={"record": "yes"}).status_code == 422


def test_the_memory_that_is_held_is_enough() -> None:
    """Also for more events than are kept, and for the file."""
    trace, budget = Trace(), MemoryBudget(10**12)
    recording = TraceRecording(trace, budget)
    recording.begin()
    held = budget.holders()["trace"]
    tracemalloc.start()
    try:
        now = time.perf_counter()
        for number in range(MOST_EVENTS + 100):
            trace.event(f"layer {number} of a model", f"lane {number % 8}", now, 0.1 + number, bytes=10**9 + number)
        assert len(json.loads(trace.text())["traceEvents"]) == MOST_EVENTS + 8
        tracemalloc.reset_peak()
        text = trace.text()
        assert tracemalloc.get_traced_memory()[1] < held
    finally:
        tracemalloc.stop()
    assert len(text) > MOST_EVENTS * 100
