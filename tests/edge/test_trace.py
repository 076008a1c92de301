"""Counters that add up over threads, and events that a trace viewer can open."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.waiting import at_once

from edge.errors import StorageError
from edge.trace import Trace


def written(trace: Trace, folder: Path) -> dict[str, Any]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    trace.write(folder / "trace.json")
    document: dict[str, Any] = json.loads((folder / "trace.json").read_text("utf-8"), parse_constant=refuse)
    return document


class Dawdling(Counter[str]):
    """Lets another thread in between reading a number and writing it back."""

    def __getitem__(self, name: str) -> int:
        value = super().__getitem__(name)
        time.sleep(0)
        return value


def test_counters_and_events_from_many_threads_add_up() -> None:
    trace = Trace(events=True)
    trace.counters = Dawdling()

    def work(number: int) -> None:
        for i in range(100):
            trace.count("disk.bytes", 3)
            trace.count("disk.stall_s", 0.5)
            trace.mark(f"{number}.{i}", f"track {number % 2}")

    at_once(work, 8)
    kinds = Counter(event["ph"] for event in json.loads(trace.text())["traceEvents"])
    assert kinds == {"i": 800, "M": 2}
    before = trace.snapshot()
    trace.count("disk.bytes")
    assert before == {"disk.bytes": 2400, "disk.stall_s": 400.0}


def test_events_only_when_asked_for(tmp_path: Path) -> None:
    trace = Trace()
    with trace.span("layer 0", "compute"):
        trace.mark("evict", "rows")
        trace.level("memory", bytes=5)
        trace.count("a", np.int64(2))
        trace.count("b", np.float32(0.5))
    document = written(trace, tmp_path)
    assert document["traceEvents"] == []
    assert document["otherData"]["counters"] == {"a": 2, "b": 0.5}
    for place in (tmp_path / "missing" / "trace.json", tmp_path):
        with pytest.raises(StorageError, match=re.escape(str(place))):
            trace.write(place)


def test_events_are_those_of_the_chrome_trace_format(tmp_path: Path) -> None:
    trace = Trace(events=True)
    before = time.perf_counter()
    with trace.span("layer 0", "compute", sequences=3):
        trace.mark("prune", "decisions", dropped=np.arange(1, 3), kept=np.int64(1), cv=float("inf"))  # as the core does
    trace.event("layer.1", "lane disk", before, 0.25, bytes=7)
    trace.level("memory", resident=5.0)
    events = written(trace, tmp_path)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert all(e["name"] == "thread_name" for e in events if e["ph"] == "M")
    assert sorted(names.values()) == ["compute", "decisions", "lane disk", "levels"]
    assert len({e["pid"] for e in events}) == 1
    found = {e["name"]: e for e in events if e["ph"] != "M"}
    assert {name: (e["ph"], names[e["tid"]]) for name, e in found.items()} == {
        "layer 0": ("X", "compute"),
        "prune": ("i", "decisions"),
        "layer.1": ("X", "lane disk"),
        "memory": ("C", "levels"),
    }
    assert found["layer 0"]["args"] == {"sequences": 3}
    assert found["prune"]["args"].items() >= {"dropped": [1, 2], "kept": 1}.items()
    assert found["layer.1"]["dur"] == 250_000.0
    start, end = found["layer 0"]["ts"], found["layer 0"]["ts"] + found["layer 0"]["dur"]
    assert 0 <= found["layer.1"]["ts"] <= start <= found["prune"]["ts"] <= end
    assert found["memory"]["args"] == {"resident": 5.0}


def test_a_recording_on_request_keeps_the_latest_events(tmp_path: Path) -> None:
    trace = Trace()
    trace.mark("before", "x")
    trace.record(3)
    for number in range(5):
        trace.mark(str(number), "x")
    assert (trace.recording, trace.recorded) == (True, 3)
    names = [event["name"] for event in written(trace, tmp_path)["traceEvents"] if event["ph"] == "i"]
    assert names == ["2", "3", "4"]
    assert json.loads(trace.text()) == written(trace, tmp_path)
    trace.record(3)
    assert trace.recorded == 0, "it begins anew"
    trace.mark("after", "x")
    trace.forget()
    trace.mark("never", "x")
    assert (trace.recording, trace.recorded) == (False, 0)
    trace.record(3)
    trace.mark("again", "x")
    assert [event["name"] for event in written(trace, tmp_path)["traceEvents"]] == ["thread_name", "again"]


def test_a_timed_block_is_counted_and_recorded_even_if_it_fails(tmp_path: Path) -> None:
    trace = Trace(events=True)
    with trace.timed("search.embed_s", "embed", "search"):
        time.sleep(0.01)
    with pytest.raises(KeyError), trace.span("layer 0", "compute"), trace.timed("search.embed_s", "embed", "search"):
        raise KeyError
    first, second, outer = (event for event in written(trace, tmp_path)["traceEvents"] if event["ph"] == "X")
    assert [event["name"] for event in (first, second, outer)] == ["embed", "embed", "layer 0"]
    assert trace.snapshot()["search.embed_s"] == pytest.approx((first["dur"] + second["dur"]) / 1e6)
    assert first["dur"] >= 10_000
