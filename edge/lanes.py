"""Lanes: one I/O worker per link (disk to host, host to device), ordered by priority and deadline.

Positioned reads release the interpreter lock, so a lane overlaps with compute. Each lane estimates its bandwidth and
accounts for every second its callers stalled and every second of transfer that stayed hidden behind their work.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from edge.blocks import BlockId
from edge.errors import EdgeError
from edge.trace import Trace

_SMOOTHING = 0.2


class BlockSource(Protocol):
    """What a lane reads from: a `BlockFile`, or a test's stand-in."""

    def nbytes(self, block: BlockId) -> int: ...

    def read(self, block: BlockId, into: memoryview) -> None: ...


class Ticket:
    """A transfer that was asked for. `wait` hands over the result; an error in the worker is raised there."""

    def __init__(self, lane: Lane, label: str, work: Callable[[], int], nbytes: int) -> None:
        self.label = label
        self.nbytes = nbytes
        self.cancelled = False
        self.seconds = 0.0
        self._lane = lane
        self._work: Callable[[], int] | None = work
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._accounted = False

    @property
    def done(self) -> bool:
        """True once the transfer has ended, failed or been cancelled."""
        return self._finished.is_set()

    @property
    def failed(self) -> bool:
        """True once the transfer has met an error."""
        return self._error is not None

    def wait(self) -> None:
        """Blocks until the transfer has ended, and accounts for the stall the first time.

        Raises:
            CorruptBlock, StorageError: what the transfer met.
            EdgeError: it was withdrawn, or its deadline passed before it could start.
        """
        if self._accounted and self._error is None:  # as for every block that is in memory
            return
        started = time.perf_counter()
        stall = 0.0  # exactly, where it had ended before: nobody waits for it, and hundreds of such add up
        if not self._finished.is_set():
            self._lane._run_now(self)
            self._finished.wait()
            stall = time.perf_counter() - started
        if self.cancelled:
            raise EdgeError(f"the transfer of {self.label} was withdrawn before it started")
        if not self._accounted:
            self._accounted = True
            self._lane._waited(self, started, stall)
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Withdraws the transfer if it has not started, else blocks until it has ended. Afterwards nothing writes
        into its buffer any more. Neither accounts for a stall nor raises what the transfer met."""
        if not self.cancel():
            self._finished.wait()

    def cancel(self) -> bool:
        """Withdraws the transfer if it has not started; returns whether it did."""
        return self._lane._cancel(self)

    def _end(self, *, cancelled: bool = False) -> None:
        self._work = None  # it holds the buffer, which must not live as long as somebody keeps the ticket
        self.cancelled = cancelled
        self._finished.set()


class Lane:
    """One link with one worker thread; one transfer at a time.

    Counters (in `trace`): `<name>.bytes`, `.transfers`, `.busy_s`, `.stall_s` (callers waited), `.hidden_s` (transfer
    time that nobody waited for), `.missed` (deadlines that passed before the transfer could start).
    """

    def __init__(self, name: str = "disk", *, trace: Trace | None = None, bandwidth_limit: float = math.inf) -> None:
        """Starts the worker.

        Args:
            bandwidth_limit: bytes per second this link is slowed down to (the throttled test device).
        """
        self.name = name
        self.trace = trace or Trace()
        self.bandwidth = 0.0
        """Smoothed bytes per second of transfers so far; 0 until there was one."""
        self._bandwidth_limit = bandwidth_limit
        self._queue: list[tuple[float, float, int, Ticket]] = []
        self._order = itertools.count()
        self._condition = threading.Condition()
        self._transferring = False
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"edge-lane-{name}", daemon=True)
        self._thread.start()

    def fetch(
        self,
        source: BlockSource,
        block: BlockId,
        into: memoryview,
        *,
        priority: float = 0.0,
        deadline: float = math.inf,
    ) -> Ticket:
        """Asks for a block. `into` must stay untouched until the ticket is done.

        Args:
            priority: lower goes first.
            deadline: `time.perf_counter()` reading; earlier goes first among equals, and a transfer that has not
                started by then is cancelled.
        """
        nbytes = source.nbytes(block)

        def read() -> int:
            source.read(block, into)
            return nbytes

        return self.submit(str(block), read, nbytes, priority=priority, deadline=deadline)

    def submit(
        self, label: str, work: Callable[[], int], nbytes: int, *, priority: float = 0.0, deadline: float = math.inf
    ) -> Ticket:
        """Asks for any transfer over this link; `work` does it and returns the bytes moved."""
        ticket = Ticket(self, label, work, nbytes)
        with self._condition:
            if self._closed:
                raise RuntimeError(f"lane {self.name} is closed")
            heapq.heappush(self._queue, (priority, deadline, next(self._order), ticket))
            self._condition.notify()
        return ticket

    def close(self) -> None:
        """Cancels what has not started, lets the running transfer end and stops the worker."""
        with self._condition:
            self._closed = True
            for *_, ticket in self._queue:
                ticket._end(cancelled=True)
            self._queue.clear()
            self._condition.notify_all()
        if self._thread is threading.current_thread():  # garbage was collected there, and this lane's owner with it
            return
        self._thread.join()
        with self._condition:
            while self._transferring:  # in a thread that waits for it
                self._condition.wait()

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            ticket = self._next()
            if ticket is None:
                return
            self._transfer(ticket)
            self._ended()
            del ticket  # while the lane is idle it must not keep the last buffer alive

    def _next(self) -> Ticket | None:
        """The ticket whose turn it is; from here on it can no longer be withdrawn. None when the lane closes."""
        with self._condition:
            while True:
                while (not self._queue or self._transferring) and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return None
                _, deadline, _, ticket = heapq.heappop(self._queue)
                if time.perf_counter() <= deadline:
                    self._transferring = True
                    return ticket
                ticket._end(cancelled=True)
                self.trace.count(f"{self.name}.missed")
                del ticket

    def _run_now(self, ticket: Ticket) -> None:
        """Transfers in the thread that waits, if it is the ticket's turn and the worker has not woken up yet: two
        changes of threads take longer than a small read."""
        with self._condition:
            if self._transferring or self._closed or not self._queue or self._queue[0][3] is not ticket:
                return
            if time.perf_counter() > self._queue[0][1]:
                return
            heapq.heappop(self._queue)
            self._transferring = True
        self._transfer(ticket)
        self._ended()

    def _ended(self) -> None:
        with self._condition:
            self._transferring = False
            self._condition.notify_all()

    def _transfer(self, ticket: Ticket) -> None:
        started = time.perf_counter()
        moved = 0
        try:
            assert ticket._work is not None
            moved = ticket._work()
            spare = moved / self._bandwidth_limit - (time.perf_counter() - started)
            if spare > 0:
                time.sleep(spare)
        except BaseException as error:  # handed to whoever waits; the worker itself goes on
            ticket._error = error
        seconds = time.perf_counter() - started
        ticket.seconds = seconds
        if moved and seconds > 0:
            rate = moved / seconds
            self.bandwidth += (rate - self.bandwidth) * (_SMOOTHING if self.bandwidth else 1.0)
        self.trace.count(f"{self.name}.bytes", moved)
        self.trace.count(f"{self.name}.transfers")
        self.trace.count(f"{self.name}.busy_s", seconds)
        self.trace.event(ticket.label, f"lane {self.name}", started, seconds, bytes=moved)
        ticket._end()

    def _waited(self, ticket: Ticket, started: float, stall: float) -> None:
        self.trace.count(f"{self.name}.stall_s", stall)
        self.trace.count(f"{self.name}.hidden_s", max(0.0, ticket.seconds - stall))
        if stall > 1e-4:
            self.trace.event(f"stall {ticket.label}", "compute", started, stall)

    def _cancel(self, ticket: Ticket) -> bool:
        with self._condition:
            for position, entry in enumerate(self._queue):
                if entry[3] is ticket:
                    del self._queue[position]
                    heapq.heapify(self._queue)
                    ticket._end(cancelled=True)
                    return True
        return False
