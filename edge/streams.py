"""Streams: queues of work that a device runs by itself, and events by which one queue waits for another.

A thread puts work into a stream and goes on. The work of one stream runs in order. Two streams are independent unless
one waits for an event of the other. So a transfer on its own stream can cross the link while another stream computes,
and no thread waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Event(Protocol):
    """A point in a stream: the end of all the work that was put into the stream before."""

    @property
    def done(self) -> bool:
        """Whether the stream has passed the event."""

    def wait(self) -> None:
        """Blocks the calling thread until the stream has passed the event."""


class Stream(Protocol):
    """A device's queue of work. Several threads may share one."""

    def run(self, work: Callable[[], object]) -> None:
        """Puts work into the queue.

        `work` may be called now or later, so it must not return anything that the caller needs. The data that it reads
        must not change until an event after it is done.
        """

    def record(self) -> Event:
        """Returns an event after all the work that is in the queue now."""

    def wait(self, event: Event) -> None:
        """Makes the work that is queued from now on wait for `event`. The calling thread goes on."""

    def synchronize(self) -> None:
        """Blocks the calling thread until all the work in the queue is done."""
