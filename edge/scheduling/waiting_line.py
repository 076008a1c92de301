"""`WaitingLine`: threads wait in line for the same kind of work, and the first does it for several.

The `Urgency` of a request is a context variable: a thread that works on the request must run in a copy of its
context."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from edge.errors import DeadlinePassed, Withdrawn

PERSON, PROGRAM, BATCH = 0, 1, 2
"""Priorities, the most urgent first: a person waits, a program waits, or no one waits."""


class Urgency:
    """One request's priority (the smaller number goes first), deadline and cancellation. Thread-safe."""

    def __init__(self, priority: int = PROGRAM, *, seconds: float | None = None) -> None:
        """`seconds`: time from now until the result becomes useless; None for no deadline."""
        self.priority = priority
        self._seconds = seconds
        self._deadline = None if seconds is None else time.perf_counter() + seconds
        self._cancelled = False
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0 if it has passed; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.perf_counter())

    @property
    def leisure(self) -> float:
        """The seconds until the deadline as a whole power of two, so that nearly equal deadlines are equal."""
        remaining = self.remaining
        return math.inf if remaining is None else math.floor(math.log2(max(1.0, remaining)))

    def cancel(self) -> None:
        """Withdraws the request. Running work ends at its next step. May be called from any thread, and twice."""
        with self._lock:
            self._cancelled = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def check(self) -> None:
        """Raises `Withdrawn` or `DeadlinePassed` if the request should not go on."""
        if self._cancelled:
            raise Withdrawn("the request was withdrawn")
        if self._deadline is not None and time.perf_counter() >= self._deadline:
            raise DeadlinePassed(f"the request was not done within its {self._seconds:g} seconds")

    @contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Inside the block, `cancel` calls `listener` in its thread; at once, if the request was withdrawn before."""
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


Task = TypeVar("Task")

WINDOW = 16
"""Number of more urgent later tasks that may go before an earlier one; with 0, tasks are served as they arrive."""


class Overtaken(Protocol):
    """An entry of a line, with the number of later entries that went before it."""

    passed: int


Entry = TypeVar("Entry", bound=Overtaken)


def foremost(waiting: Sequence[Entry], window: int, key: Callable[[Entry], Any]) -> Entry | None:
    """The entry with the smallest key, the earlier of equals; first one that `window` others have overtaken."""
    bar = next((i for i, entry in enumerate(waiting) if entry.passed >= window), len(waiting) - 1)
    return min(waiting[: bar + 1], key=key, default=None)


@dataclass(eq=False, slots=True)
class _Place(Generic[Task]):
    """A task in the line: the later tasks that went before it, whether it was taken or needs no more work, and the
    exception of its work."""

    task: Task
    urgency: Urgency
    passed: int = 0
    taken: bool = False
    done: bool = False
    error: Exception | None = None


class WaitingLine(Generic[Task]):
    """Tasks in the order of their priorities, equals by arrival. Thread-safe.

    A task that `window` later ones have overtaken goes before all tasks behind it, so that every task has its turn.
    """

    window = WINDOW

    def __init__(self, work: Callable[[Taken[Task]], None]) -> None:
        """`work` takes at least one task, one thread at a time; what it did not put back is then done."""
        self._work = work
        self._places: list[_Place[Task]] = []
        self._changed = threading.Condition()
        self._working = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def waiting(self) -> int:
        return sum(not place.taken for place in list(self._places))

    def run(self, task: Task) -> None:
        """Returns when a task, with the urgency of the calling thread, is done. Raises what its work raised, or
        Withdrawn or DeadlinePassed before that began."""
        place = _Place(task, current_urgency())
        with place.urgency.heard(self._wake):
            with self._changed:
                self._places.append(place)
            try:
                while self._waits(place):
                    with self._leading() as taken:
                        self._work(taken)
            finally:
                with self._changed:
                    if place in self._places:
                        self._places.remove(place)
                    self._changed.notify_all()
        if place.error is not None:
            raise place.error

    def _waits(self, place: _Place[Task]) -> bool:
        """Sleeps until the task is done (returns False), or this thread must do the work (returns True)."""
        with self._changed:
            while not place.done:
                if not place.taken:
                    place.urgency.check()
                    if not self._working and self._first() is place:
                        self._working = True
                        return True
                self._changed.wait(None if place.taken else place.urgency.remaining)
            return False

    @contextmanager
    def _leading(self) -> Iterator[Taken[Task]]:
        """The tasks that this thread takes. What it raises ends them."""
        taken = Taken(self)
        try:
            yield taken
        except Exception as error:
            for place in taken.places:
                place.error = error
        except BaseException:
            with self._changed:  # this thread was interrupted, so the other threads' tasks are begun again
                for place in taken.places:
                    place.taken = False
            taken.places.clear()
            raise
        finally:
            with self._changed:
                for place in taken.places:
                    place.done = True
                self._working = False
                self._changed.notify_all()

    def _first(self, fits: Callable[[Task], bool] | None = None) -> _Place[Task] | None:
        waiting = [
            place for place in self._places if not place.taken and not place.done and (fits is None or fits(place.task))
        ]
        return foremost(waiting, self.window, lambda place: place.urgency.priority)

    def _take(self, beside: Callable[[Task], bool] | None) -> _Place[Task] | None:
        with self._changed:
            chosen = self._first(beside)
            if chosen is not None:
                chosen.taken = True
                if beside is None:
                    for place in self._places[: self._places.index(chosen)]:
                        place.passed += not place.taken and not place.done
            return chosen

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@dataclass(slots=True)
class Taken(Generic[Task]):
    line: WaitingLine[Task]
    places: list[_Place[Task]] = field(default_factory=list)

    def next(self, beside: Callable[[Task], bool] | None = None) -> Task | None:
        """Takes the next task; None if no task waits. `beside`: those that can be done beside the tasks taken before;
        none that waits for these counts as overtaken."""
        place = self.line._take(beside)
        if place is None:
            return None
        self.places.append(place)
        return place.task

    def put_back(self, task: Task) -> None:
        """Returns a task to its old place in the line, to be done later."""
        place = self._left(task)
        with self.line._changed:
            place.taken = False

    def done(self, task: Task) -> None:
        """Ends a task early, so that its thread goes on before all the work is done."""
        place = self._left(task)
        with self.line._changed:
            place.done = True
            self.line._changed.notify_all()

    def _left(self, task: Task) -> _Place[Task]:
        """The place of a task that is not among the taken ones any more."""
        place = next(place for place in self.places if place.task is task)
        self.places.remove(place)
        return place
