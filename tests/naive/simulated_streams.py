"""Streams that complete late and out of order, on torch's CPU device: a missing wait shows as a wrong result.

Work that is put into a stream is kept until it must be done. The streams named as eager do everything as soon as their
waits allow; the others do nothing before somebody waits for it, and then no more than that.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NAMES = ("compute", "inward", "outward")

POLICIES = [frozenset(eager) for count in range(4) for eager in itertools.combinations(NAMES, count)]
"""Every choice of eager streams."""

Wait = tuple[str, str]
"""Who waits (a stream, or `host` for a thread) and whose event it waits for."""


@dataclass(eq=False)
class SimulatedEvent:
    stream: SimulatedStream
    done: bool = False

    def wait(self) -> None:
        world = self.stream.world
        world.waits.add(("host", self.stream.name))
        if ("host", self.stream.name) not in world.dropped:
            world.finish(self)


@dataclass(eq=False)
class SimulatedStream:
    world: SimulatedStreams
    name: str
    queue: deque[Any] = field(default_factory=deque)

    def run(self, work: Callable[[], object]) -> None:
        self.world.put(self, work)

    def record(self) -> SimulatedEvent:
        event = SimulatedEvent(self)
        self.world.put(self, event)
        return event

    def wait(self, event: SimulatedEvent) -> None:
        pair = (self.name, event.stream.name)
        self.world.waits.add(pair)
        if pair not in self.world.dropped and event.stream is not self:
            self.world.put(self, ("wait", event))

    def synchronize(self) -> None:
        event = SimulatedEvent(self)
        self.world.put(self, event)
        self.world.finish(event)


class SimulatedStreams:
    """The streams of one device. Those named `eager` work as early as they may; waits named `dropped` are forgotten, as
    in a program that lacks them. `waits` is every kind of wait that was asked for."""

    def __init__(self, torch: Any, eager: frozenset[str] = frozenset(), dropped: frozenset[Wait] = frozenset()) -> None:
        self._torch = torch
        self.eager = eager
        self.dropped = dropped
        self.waits: set[Wait] = set()
        self._lock = threading.RLock()
        self._streams: list[SimulatedStream] = []

    def open(self, name: str) -> SimulatedStream:
        self._streams.append(SimulatedStream(self, name))
        return self._streams[-1]

    def put(self, stream: SimulatedStream, item: Any) -> None:
        with self._lock:
            stream.queue.append(item)
            self._advance_eager()

    def finish(self, event: SimulatedEvent) -> None:
        """Does the work that must precede an event, and no more."""
        with self._lock:
            while not event.done:
                head = event.stream.queue[0]
                if self._may_run(head):
                    self._step(event.stream)
                else:
                    self.finish(head[1])
            self._advance_eager()

    def _advance_eager(self) -> None:
        moved = True
        while moved:
            moved = False
            for stream in self._streams:
                while stream.name in self.eager and stream.queue and self._may_run(stream.queue[0]):
                    self._step(stream)
                    moved = True

    @staticmethod
    def _may_run(head: Any) -> bool:
        return not isinstance(head, tuple) or head[1].done

    def _step(self, stream: SimulatedStream) -> None:
        head = stream.queue.popleft()
        if isinstance(head, SimulatedEvent):
            head.done = True
        elif not isinstance(head, tuple):
            with self._torch.inference_mode():
                head()
