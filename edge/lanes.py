"""Lanes: the transfers over one physical link (disk to host, host to device), ordered by priority and deadline.

A `Link` has one worker thread and moves one block at a time. Everything in the process that uses the link does so
through a `Lane` of its own, which counts for its own trace. Positioned reads release the interpreter lock, so transfers
overlap with compute. A link learns its latency and bandwidth; a lane accounts for every second its callers waited and
every second of transfer that stayed hidden behind their work.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
from collections.abc import Callable
from types import TracebackType

from edge.blocks import BlockId, BlockSource
from edge.clock import Clock, SystemClock
from edge.errors import EdgeError
from edge.link_rate import LinkRate
from edge.trace import Trace

_ending = threading.Lock()
"""Held for the moment in which a ticket ends: a lock for each of them takes longer to make than to wait for this."""


class Ticket:
    """A transfer that was asked for. `wait` returns when it is done; an error in the worker is raised there."""

    def __init__(self, lane: Lane, label: str, work: Callable[[], int], nbytes: int, after: Ticket | None) -> None:
        self.label = label
        self.nbytes = nbytes
        self.cancelled = False
        self.seconds = 0.0
        self._lane = lane
        self._work: Callable[[], int] | None = work
        self._after = after
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._accounted = False
        self._callbacks: list[Callable[[], None]] | None = None

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
            CorruptBlock, StorageError: what the transfer met, or the one that it follows.
            EdgeError: it was withdrawn, or its deadline passed before it could start.
        """
        if self._accounted and self._error is None:  # the common case: a block that is in memory
            return
        started = self._lane.clock.now()
        stall = 0.0  # hundreds of readings of the clock would add up where transfers had ended before
        if not self._finished.is_set():
            self._lane.link._run_now(self)
            self._finished.wait()
            stall = self._lane.clock.now() - started
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
        """Withdraws the transfer, and the one it follows, if it has not started; returns whether it did."""
        return self._lane.link._cancel(self)

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls `call` once when the transfer has ended, failed or been withdrawn, in the thread that ends it; at once
        if that is over. It must not wait for anything."""
        with _ending:
            if not self._finished.is_set():
                self._callbacks = [*(self._callbacks or ()), call]
                return
        call()

    def _end(self, *, cancelled: bool = False) -> None:
        """Must be called without the link's lock: what follows may go to another link."""
        self._work = None  # it holds the buffer, which must not live as long as somebody keeps the ticket
        self._after = None
        with _ending:
            self.cancelled = cancelled
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, None
        for call in callbacks or ():
            call()


class Link:
    """One physical link with one worker thread. It runs while a lane is open.

    Attributes:
        rate: latency and bandwidth of the transfers so far.
        clock: what it measures with.
    """

    def __init__(
        self,
        name: str,
        *,
        bandwidth_limit: float = math.inf,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            bandwidth_limit: bytes per second that it is slowed down to (a modelled link).
            latency: seconds that each transfer takes at least beside its bytes.
        """
        self.name = name
        self.rate = LinkRate()
        self.clock: Clock = clock or SystemClock()
        self.condition = threading.Condition()
        self._bandwidth_limit = bandwidth_limit
        self._latency = latency
        self._queue: list[tuple[float, float, int, Ticket]] = []
        self._order = itertools.count()
        self._running: Lane | None = None
        self._lanes = 0
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Counts one more lane; the first starts the worker."""
        with self.condition:
            self._lanes += 1
            if self._lanes == 1:
                self._thread = threading.Thread(target=self._serve, name=f"edge-lane-{self.name}", daemon=True)
                self._thread.start()

    def close(self, lane: Lane) -> None:
        """Withdraws what this lane asked for and has not started, and lets its running transfer end. The last lane
        stops the worker."""
        with self.condition:
            own = [entry[3] for entry in self._queue if entry[3]._lane is lane]
            self._queue = [entry for entry in self._queue if entry[3]._lane is not lane]
            heapq.heapify(self._queue)
            self._lanes -= 1
            thread = self._thread
            if not self._lanes:
                self._thread = None
            self.condition.notify_all()
        for ticket in own:
            ticket._end(cancelled=True)
        if thread is threading.current_thread():  # garbage was collected there, and the lane's owner with it
            return
        if not self._lanes and thread is not None:
            thread.join()
        with self.condition:
            while self._running is lane:  # a thread that waits may be transferring itself
                self.condition.wait()

    def enqueue(self, ticket: Ticket, priority: float, deadline: float) -> None:
        """Lets a ticket wait for its turn."""
        with self.condition:
            if not ticket._lane.closed:
                heapq.heappush(self._queue, (priority, deadline, next(self._order), ticket))
                self.condition.notify()
                return
        ticket._end(cancelled=True)

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            with self.condition:
                while (not self._queue or self._running is not None) and self._thread is me:
                    self.condition.wait()
                if self._thread is not me:
                    return
                _, deadline, _, ticket = heapq.heappop(self._queue)
                late = self.clock.now() > deadline
                if not late:  # from here on it can no longer be withdrawn
                    self._running = ticket._lane
            if late:
                ticket._lane._missed()
                ticket._end(cancelled=True)
            else:
                self._transfer(ticket)
                self._ended()
            del ticket  # while the link is idle it must not keep the last buffer alive

    def _run_now(self, ticket: Ticket) -> None:
        """Transfers in the thread that waits, if it is the ticket's turn and the worker has not woken up yet: two
        changes of threads take longer than a small read."""
        with self.condition:
            if self._running is not None or not self._queue or self._queue[0][3] is not ticket:
                return
            if ticket._lane.closed or self.clock.now() > self._queue[0][1]:
                return
            heapq.heappop(self._queue)
            self._running = ticket._lane
        self._transfer(ticket)
        self._ended()

    def _ended(self) -> None:
        with self.condition:
            self._running = None
            self.condition.notify_all()

    def _transfer(self, ticket: Ticket) -> None:
        started = self.clock.now()
        moved = 0
        try:
            assert ticket._work is not None
            moved = ticket._work()
            spare = self._latency + moved / self._bandwidth_limit - (self.clock.now() - started)
            if spare > 0:
                self.clock.sleep(spare)
        except BaseException as error:  # raised where the ticket is waited for; the worker itself goes on
            ticket._error = error
        ticket.seconds = self.clock.now() - started
        if not ticket.failed:
            self.rate.add(moved, ticket.seconds)
        ticket._lane._moved(ticket, started, moved)
        ticket._end()

    def _cancel(self, ticket: Ticket) -> bool:
        before = ticket._after
        with self.condition:
            if before is None or ticket.done:
                place = next((i for i, entry in enumerate(self._queue) if entry[3] is ticket), None)
                if place is None:
                    return False
                del self._queue[place]
                heapq.heapify(self._queue)
        if before is not None:  # it has not been in the queue yet, and ends with the one that it follows
            return before.cancel()
        ticket._end(cancelled=True)
        return True


_shared: dict[str, Link] = {}
_sharing = threading.Lock()


class Lane:
    """One user's way to a link.

    Counters (in `trace`): `<name>.bytes`, `.transfers`, `.busy_s`, `.stall_s` (callers waited), `.hidden_s` (transfer
    time that nobody waited for), `.missed` (deadlines that passed before the transfer could start).

    Attributes:
        link: where the transfers of all its lanes wait for their turn.
    """

    def __init__(
        self,
        name: str = "disk",
        *,
        trace: Trace | None = None,
        bandwidth_limit: float = math.inf,
        latency: float = 0.0,
        clock: Clock | None = None,
        link: Link | None = None,
    ) -> None:
        """Opens a lane of `link`, or of a link of its own with these properties (see `Link`)."""
        self.name = name
        self.trace = trace or Trace()
        self.link = link or Link(name, bandwidth_limit=bandwidth_limit, latency=latency, clock=clock)
        self.closed = False
        self.link.open()

    @classmethod
    def shared(cls, link: str = "disk", *, name: str = "", trace: Trace | None = None) -> Lane:
        """A lane of the one link of that name in this process. Models, lists and states come from the same disk, and
        what is needed first must go first, whoever needs it.

        Args:
            name: of the lane's counters; the link's if not given.
        """
        with _sharing:
            found = _shared.setdefault(link, Link(link))
        return cls(name or link, trace=trace, link=found)

    @property
    def clock(self) -> Clock:
        return self.link.clock

    @property
    def rate(self) -> LinkRate:
        """What is known about the link's speed, from the transfers of all its users."""
        return self.link.rate

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
            deadline: a reading of the clock; earlier goes first among equals, and a transfer that has not started by
                then is cancelled.
        """
        nbytes = source.nbytes(block)

        def read() -> int:
            source.read(block, into)
            return nbytes

        return self.submit(str(block), read, nbytes, priority=priority, deadline=deadline)

    def submit(
        self,
        label: str,
        work: Callable[[], int],
        nbytes: int,
        *,
        priority: float = 0.0,
        deadline: float = math.inf,
        after: Ticket | None = None,
    ) -> Ticket:
        """Asks for any transfer over this link; `work` does it and returns the bytes moved.

        Args:
            after: a transfer, perhaps over another link, that must have ended first. If that fails or is withdrawn,
                so is this one.

        Raises:
            RuntimeError: the lane is closed.
        """
        if self.closed:
            raise RuntimeError(f"lane {self.name} is closed")
        ticket = Ticket(self, label, work, nbytes, after)
        if after is None:
            self.link.enqueue(ticket, priority, deadline)
            return ticket

        def follow() -> None:
            ticket._after = None
            if after.failed or after.cancelled:
                ticket._error = after._error
                ticket._end(cancelled=after.cancelled)
            else:
                self.link.enqueue(ticket, priority, deadline)

        after.when_done(follow)
        return ticket

    def close(self) -> None:
        """Cancels what has not started, and lets this lane's running transfer end. The link goes on for others."""
        with self.link.condition:
            if self.closed:
                return
            self.closed = True
        self.link.close(self)

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _moved(self, ticket: Ticket, started: float, nbytes: int) -> None:
        self.trace.count(f"{self.name}.bytes", nbytes)
        self.trace.count(f"{self.name}.transfers")
        self.trace.count(f"{self.name}.busy_s", ticket.seconds)
        self.trace.event(ticket.label, f"lane {self.name}", started, ticket.seconds, bytes=nbytes)

    def _missed(self) -> None:
        self.trace.count(f"{self.name}.missed")

    def _waited(self, ticket: Ticket, started: float, stall: float) -> None:
        self.trace.count(f"{self.name}.stall_s", stall)
        self.trace.count(f"{self.name}.hidden_s", max(0.0, ticket.seconds - stall))
        if stall > 1e-4:
            self.trace.event(f"stall {ticket.label}", "compute", started, stall)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # threads do not live on in a forked process
