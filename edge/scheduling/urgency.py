"""`Urgency`: how soon a request's result is needed, and whether its caller still waits for it.

A request's urgency is a context variable, so that the layers between a server and the core need not pass it on. A
thread that works on the request must run in a copy of its context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from edge.errors import DeadlinePassed, Withdrawn
from edge.link import Clock, SystemClock

PERSON, PROGRAM, BATCH = 0, 1, 2
"""Priorities, the most urgent first: a person waits, a program waits, or no one waits."""


class Urgency:
    """One request's priority, deadline and cancellation. Thread-safe.

    Attributes:
        priority: the request with the smaller number goes first.
    """

    def __init__(self, priority: int = PROGRAM, *, seconds: float | None = None, clock: Clock | None = None) -> None:
        """`seconds`: time from now until the result becomes useless; None for no deadline."""
        self.priority = priority
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._deadline = None if seconds is None else self._clock.now() + seconds
        self._cancelled = False
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0 if it has passed; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.now())

    def cancel(self) -> None:
        """Withdraws the request. Running work ends at its next step. May be called from any thread, and twice."""
        with self._lock:
            self._cancelled = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def check(self) -> None:
        """Raises an error if the request should not go on.

        Raises:
            Withdrawn: the request was withdrawn.
            DeadlinePassed: its deadline has passed.
        """
        if self._cancelled:
            raise Withdrawn("the request was withdrawn")
        if self._deadline is not None and self._clock.now() >= self._deadline:
            raise DeadlinePassed(f"the request was not done within its {self._seconds:g} seconds")

    @contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Inside the block, `cancel` calls `listener`, in the thread that cancels. A request that was withdrawn before
        the block has it called at once."""
        with self._lock:
            self._listeners.append(listener)
            cancelled = self._cancelled
        try:
            if cancelled:
                listener()
            yield
        finally:
            with self._lock, suppress(ValueError):
                self._listeners.remove(listener)


_CURRENT: ContextVar[Urgency | None] = ContextVar("edge_urgency", default=None)


def current_urgency() -> Urgency:
    """The urgency of the request that this thread works on; if none was set, a default without a deadline."""
    return _CURRENT.get() or Urgency()


@contextmanager
def urgent(urgency: Urgency) -> Iterator[None]:
    """Sets the urgency of all work inside the block."""
    token = _CURRENT.set(urgency)
    try:
        yield
    finally:
        _CURRENT.reset(token)
