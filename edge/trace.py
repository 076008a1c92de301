"""Counters for `--stats`, tests and benchmarks, and events that are written as Chrome/Perfetto JSON."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import as_storage_error


class Trace:
    """Counters, and events if asked for, since a long run has many events. Thread-safe.

    Counter names have the form `subject.quantity`; seconds end in `_s`: `disk.bytes_read`, `disk.stall_s`, `rows.hits`.
    """

    def __init__(self, *, events: bool = False) -> None:
        self.counters: Counter[str] = Counter()
        self.recording = events
        self._events: deque[dict[str, Any]] = deque()
        self._tracks: dict[str, int] = {}
        self._origin = time.perf_counter()
        self._lock = threading.Lock()
        self._listeners: dict[str, Callable[[float], None]] = {}
        self._main: Trace | None = None

    def branch(self) -> Trace:
        """A trace with counters of its own, for one of several requests. Its counts and events go to this one, too."""
        found = Trace(events=self.recording)
        found._main = self
        return found

    def count(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self.counters[name] += amount  # type: ignore[assignment]
        if self._main is not None:
            self._main.count(name, amount)
        if (heard := self._listeners.get(name)) is not None:
            heard(amount)

    @contextmanager
    def listening(self, name: str, heard: Callable[[float], None]) -> Iterator[None]:
        """Inside the block, calls `heard` with each amount added to a counter, in the thread that adds it."""
        self._listeners[name] = heard
        try:
            yield
        finally:
            del self._listeners[name]

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            return dict(self.counters)

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """The growth of all counters since an earlier snapshot."""
        return {name: value - before.get(name, 0) for name, value in self.snapshot().items()}

    @contextmanager
    def span(self, name: str, track: str, **details: Any) -> Iterator[None]:
        """Records the time spent inside the block as an event on `track` (one line of the timeline)."""
        if not self.recording:
            yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self.event(name, track, start, time.perf_counter() - start, **details)

    @contextmanager
    def timed(self, counter: str, name: str, track: str) -> Iterator[None]:
        """Adds the seconds spent inside the block to a counter, and records them as `span` does."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.count(counter, seconds)
            self.event(name, track, start, seconds)

    def event(self, name: str, track: str, start: float, seconds: float, **details: Any) -> None:
        """Records a finished event; `start` is a `time.perf_counter()` reading."""
        if self._main is not None:
            self._main.event(name, track, start, seconds, **details)
        elif self.recording:
            self._append({"ph": "X", "name": name, "ts": self._us(start), "dur": seconds * 1e6, "args": details}, track)

    def mark(self, name: str, track: str, **details: Any) -> None:
        """Records an event without duration, such as a decision or an eviction."""
        if self._main is not None:
            self._main.mark(name, track, **details)
        elif self.recording:
            now = self._us(time.perf_counter())
            self._append({"ph": "i", "s": "t", "name": name, "ts": now, "args": details}, track)

    def level(self, name: str, **values: float) -> None:
        """Records a quantity over time, such as resident bytes; the timeline shows it as an area."""
        if self._main is not None:
            self._main.level(name, **values)
        elif self.recording:
            now = self._us(time.perf_counter())
            self._append({"ph": "C", "name": name, "ts": now, "args": values}, "levels")

    def record(self, most: int) -> None:
        """Forgets the events and records the next ones. Of more than `most` events the latest are kept."""
        with self._lock:
            self._events = deque(maxlen=most)
            self.recording = True

    def forget(self) -> None:
        """Records no more events and forgets those that were recorded."""
        with self._lock:
            self.recording = False
            self._events = deque()

    @property
    def recorded(self) -> int:
        return len(self._events)

    def text(self) -> bytes:
        """The events as trace JSON, which ui.perfetto.dev and chrome://tracing open."""
        with self._lock:
            names = [
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": track}}
                for track, tid in self._tracks.items()
            ]
            events, counters = [*names, *self._events], dict(self.counters)
        found = bytearray(b'{"traceEvents": [')
        for number, event in enumerate(events):
            found += b", " if number else b""
            found += json.dumps(_plain(event)).encode()
        found += b'], "otherData": ' + json.dumps(_plain({"counters": counters})).encode() + b"}"
        return bytes(found)

    def write(self, path: str | Path) -> None:
        from edge.files.named_file import open_output

        text = self.text()
        with as_storage_error(f"the trace cannot be written to {path}"), open_output(path) as file:
            file.write(text)

    def _us(self, reading: float) -> float:
        return (reading - self._origin) * 1e6

    def _append(self, event: dict[str, Any], track: str) -> None:
        with self._lock:
            event["pid"] = 1
            event["tid"] = self._tracks.setdefault(track, len(self._tracks) + 1)
            self._events.append(event)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
