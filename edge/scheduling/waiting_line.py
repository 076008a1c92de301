"""`WaitingLine`: threads wait in line for the same kind of work, and one of them works for several at a time.

The line has no thread of its own. The thread whose task is first does the work, and includes other tasks that can share
it. The other threads sleep until their tasks are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from edge.errors import ConfigError
from edge.scheduling.urgency import Urgency, current_urgency

Task = TypeVar("Task")

WINDOW = 16
"""Number of more urgent later tasks that may go before an earlier one."""


@dataclass(eq=False, slots=True)
class _Place(Generic[Task]):
    """A task in the line.

    Attributes:
        passed: number of later tasks that went before it.
        taken: whether the working thread has taken it.
        done: whether it needs no more work.
        error: exception that the work raised while it had the task.
    """

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

    def __init__(self, work: Callable[[Taken[Task]], None], *, window: int = WINDOW) -> None:
        """Makes an empty line.

        Args:
            work: takes at least one task from its argument, and does the tasks it takes. One thread at a time runs it.
                When it returns, all tasks that it took and did not put back count as done.
            window: number of later tasks that may go before an earlier one; with 0, tasks are served in the order of
                arrival.

        Raises:
            ConfigError: the window is negative.
        """
        if window < 0:
            raise ConfigError(f"the reordering window is a number of tasks of at least 0, not {window}")
        self.window = window
        self._work = work
        self._places: list[_Place[Task]] = []
        self._changed = threading.Condition()
        self._working = False

    def __len__(self) -> int:
        return len(self._places)

    def run(self, task: Task) -> None:
        """Returns when a task is done, by this thread or by another one.

        The task has the urgency of the calling thread (`edge.scheduling.urgency`).

        Raises:
            Withdrawn, DeadlinePassed: the task was withdrawn, or its deadline passed, before its work began. A task
                whose work has begun is ended by the work itself.
            Exception: the work raised it while it had the task.
        """
        place = _Place(task, current_urgency())
        with place.urgency.heard(self._wake):
            with self._changed:
                self._places.append(place)
            try:
                while self._waits(place):
                    self._lead()
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

    def _lead(self) -> None:
        taken = Taken(self)
        try:
            self._work(taken)
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

    def _first(self) -> _Place[Task] | None:
        waiting = [place for place in self._places if not place.taken and not place.done]
        # A task that has been overtaken often enough blocks all tasks behind it.
        bar = next((i for i, place in enumerate(waiting) if place.passed >= self.window), len(waiting) - 1)
        return min(waiting[: bar + 1], key=lambda place: place.urgency.priority, default=None)

    def _take(self) -> _Place[Task] | None:
        with self._changed:
            chosen = self._first()
            if chosen is not None:
                chosen.taken = True
                for place in self._places[: self._places.index(chosen)]:
                    place.passed += not place.taken and not place.done
            return chosen

    def _put_back(self, place: _Place[Task]) -> None:
        with self._changed:
            place.taken = False

    def _end(self, place: _Place[Task]) -> None:
        with self._changed:
            place.done = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@dataclass(slots=True)
class Taken(Generic[Task]):
    """The tasks that the work has taken from the line."""

    line: WaitingLine[Task]
    places: list[_Place[Task]] = field(default_factory=list)

    def next(self) -> Task | None:
        """Takes the next task; None if no task waits."""
        place = self.line._take()
        if place is None:
            return None
        self.places.append(place)
        return place.task

    def put_back(self, task: Task) -> None:
        """Returns a task to its old place in the line, to be done later."""
        place = self._place(task)
        self.places.remove(place)
        self.line._put_back(place)

    def done(self, task: Task) -> None:
        """Ends a task early, so that its thread goes on before all the work is done."""
        place = self._place(task)
        self.places.remove(place)
        self.line._end(place)

    def _place(self, task: Task) -> _Place[Task]:
        return next(place for place in self.places if place.task is task)
