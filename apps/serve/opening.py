"""Opening things one at a time: who waits goes on waiting only as long as the request's result is wanted."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from edge.scheduling.urgency import current_urgency

_LOOK_S = 0.1
"""Seconds between looks whether the request was withdrawn."""


@contextmanager
def patiently(lock: threading.Lock) -> Iterator[None]:
    """Holds a lock that another thread may hold for long.

    Raises:
        Withdrawn, DeadlinePassed: nobody waits for this request's result any more.
    """
    urgency = current_urgency()
    while not lock.acquire(timeout=_LOOK_S):
        urgency.check()
    try:
        yield
    finally:
        lock.release()


class Turns:
    """One thread at a time opens the same thing; different things are opened at once. Thread-safe."""

    def __init__(self) -> None:
        self._locks: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def turn(self, of: Hashable) -> Iterator[None]:
        """Inside the block, no other thread has a turn of the same thing. Raises as `patiently` does."""
        with patiently(self._locks[of]):
            yield
