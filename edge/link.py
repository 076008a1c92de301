"""Links: the transfers over one physical link (disk to host, host to device), ordered by priority and deadline.

A `Link` has one worker thread and moves one block at a time. Every user has its own `Lane`, and a `Ticket` for each
transfer."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge.blocks import BlockId, BlockSource
from edge.errors import EdgeError
from edge.resident import Closing
from edge.trace import Trace


class Clock(Protocol):
    """Tells the time and lets it pass. Readings are in seconds from any start, and never decrease."""

    def now(self) -> float:
        """The current reading."""

    def sleep(self, seconds: float) -> None:
        """Returns after `seconds` seconds."""


class SystemClock:
    """The clock of this machine, `time.perf_counter`."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_SMOOTHING = 0.2
"""Weight of a new transfer among those of its size."""

_ASSUMED = 1e-9
"""Seconds per byte before the first measurement: a disk that reads 1 GB a second."""

_FULL_WEIGHT = 8
"""Largest weight of a class of sizes: further transfers do not increase it."""


@dataclass(slots=True)
class _Size:
    """Transfers of about one size: smoothed bytes and seconds, and their number."""

    nbytes: float
    seconds: float
    count: int = 1


class LinkRate:
    """Fits seconds = latency + bytes / bandwidth. Thread-safe. Transfers are smoothed by class of size (a power of
    two), and the fit minimizes relative errors."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._lock = threading.Lock()
        self._fit: tuple[float, float] | None = None

    @property
    def bandwidth(self) -> float:
        per_byte = self._fitted()[1]
        return 1 / per_byte if per_byte else 0.0

    @property
    def latency(self) -> float:
        """Seconds of a transfer besides the time for its bytes; 0 if only one size of transfers has been seen."""
        return self._fitted()[0]

    def seconds(self, nbytes: float) -> float:
        """Expected seconds of a transfer of `nbytes` bytes; 0 before the first transfer."""
        latency, per_byte = self._fitted()
        return latency + nbytes * per_byte

    def throughput(self, nbytes: float) -> float:
        """Bytes per second of consecutive transfers of `nbytes` bytes each; 0 before the first transfer."""
        seconds = self.seconds(nbytes)
        return nbytes / seconds if seconds else 0.0

    def loss(self, nbytes: float) -> float:
        """Seconds per byte to read a block of `nbytes` bytes again (see `edge.budget.Loss`)."""
        return self.seconds(nbytes) / nbytes if nbytes and self._sizes else _ASSUMED

    def add(self, nbytes: int, seconds: float) -> None:
        if nbytes <= 0 or seconds <= 0:
            return
        with self._lock:
            kind = nbytes.bit_length()
            size = self._sizes.get(kind)
            if size is None:
                self._sizes[kind] = _Size(nbytes, seconds)
            else:
                size.count += 1
                step = _SMOOTHING if size.count > 1 / _SMOOTHING else 1 / size.count
                size.nbytes += step * (nbytes - size.nbytes)
                size.seconds += step * (seconds - size.seconds)
            self._fit = None

    def _fitted(self) -> tuple[float, float]:
        with self._lock:
            if self._fit is None:
                self._fit = _fit(list(self._sizes.values()))
            return self._fit


def _fit(sizes: list[_Size]) -> tuple[float, float]:
    """The line (latency, per_byte), neither below 0, with the least count-weighted sum of squared relative errors."""
    if not sizes:
        return 0.0, 0.0
    weights = [min(size.count, _FULL_WEIGHT) / size.seconds**2 for size in sizes]
    total = sum(weights)
    x = sum(w * size.nbytes for w, size in zip(weights, sizes, strict=True)) / total
    y = sum(w * size.seconds for w, size in zip(weights, sizes, strict=True)) / total
    spread = sum(w * (size.nbytes - x) ** 2 for w, size in zip(weights, sizes, strict=True))
    common = sum(w * (size.nbytes - x) * (size.seconds - y) for w, size in zip(weights, sizes, strict=True))
    slope = common / spread if spread > 0 else 0.0
    latency = y - slope * x
    if slope > 0 and latency >= 0:
        return latency, slope
    # The best line without a latency goes through zero. It is used, too, if larger transfers were not slower.
    squares = sum(w * size.nbytes**2 for w, size in zip(weights, sizes, strict=True))
    return 0.0, sum(w * size.nbytes * size.seconds for w, size in zip(weights, sizes, strict=True)) / squares


_here = threading.local()

_ending = threading.Lock()
"""Held while a ticket ends. All tickets share it, because making a lock takes longer than waiting for this one."""


def transferring() -> bool:
    """Whether this thread performs a transfer now. It must not wait for other transfers then."""
    return getattr(_here, "transfers", False)


class Ticket:
    """A requested transfer. `wait` returns when it is done, and raises an error that occurred in the worker."""

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
        self._asked = 0.0
        self._quiet = False
        self._callbacks: list[Callable[[], None]] | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def wait(self) -> None:
        if self._accounted and self._error is None:  # the common case: a block that is in memory
            return
        started = self._lane.clock.now()
        stall = 0.0  # measured only if necessary: reading the clock for hundreds of finished transfers adds up
        if not self._finished.is_set():
            self.join()
            stall = self._lane.clock.now() - started
        if self.cancelled:
            raise EdgeError(f"the transfer of {self.label} was withdrawn before it started")
        if not self._accounted:
            self._accounted = True
            self._lane._waited(self, started, stall)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error keeps this frame, and the frame would keep the ticket and its buffer

    def join(self) -> None:
        """Blocks until the transfer has ended, without counting waiting time or raising the transfer's error."""
        if not self._finished.is_set():
            if self._lane.link._claim(self):
                self._lane.link._transfer(self)
            self._finished.wait()

    def settle(self) -> None:
        """Withdraws the transfer, or blocks until it has ended, without counting or raising its error."""
        if not self.cancel():
            self._finished.wait()

    def cancel(self) -> bool:
        """Withdraws the transfer, and the one it follows, if it has not started; returns whether that succeeded."""
        return self._lane.link._cancel(self)

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls `call`, which must not wait, when the transfer is over, in the thread that ends it; now, if it is."""
        with _ending:
            if not self._finished.is_set():
                self._callbacks = [*(self._callbacks or ()), call]
                return
        call()

    def _end(self, *, cancelled: bool = False) -> None:
        """Must be called without the link's lock, because a transfer that follows may use another link."""
        self._work = None  # it refers to the buffer, which must not live as long as the ticket
        self._after = None
        with _ending:
            self.cancelled = cancelled
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, None
        for call in callbacks or ():
            call()


class Link:
    """One physical link with a worker thread, which runs while a lane is open. `rate` has its speed."""

    def __init__(
        self,
        name: str,
        *,
        bandwidth_limit: float = math.inf,
        latency: float = 0.0,
        depth: int = 1,
        clock: Clock | None = None,
    ) -> None:
        """Makes a link, modelled if there are limits: bytes per second, and seconds besides them. With a `depth` above
        1 so many latencies overlap, counted from the requests, as on a disk with a queue."""
        self.name = name
        self.rate = LinkRate()
        self.clock: Clock = clock or SystemClock()
        self.condition = threading.Condition()
        self._bandwidth_limit = bandwidth_limit
        self._latency = latency
        self._depth = depth
        self._ends: deque[float] = deque(maxlen=depth)
        self._moved_by = -math.inf  # when the last byte of the transfers so far has left
        self._queue: list[tuple[float, float, int, Ticket]] = []
        self._order = itertools.count()
        self._quiet = 0  # tickets in the queue that the worker leaves to the threads that wait for them
        self._running: Lane | None = None
        self._closing = 0
        self._lanes = 0
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        with self.condition:
            self._lanes += 1
            if self._lanes == 1:
                self._thread = threading.Thread(target=self._serve, name=f"edge-lane-{self.name}", daemon=True)
                self._thread.start()

    def close(self, lane: Lane) -> None:
        """Withdraws the lane's waiting requests, and lets a running one end. The last lane stops the worker."""
        with self.condition:
            own = [entry[3] for entry in self._queue if entry[3]._lane is lane]
            self._queue = [entry for entry in self._queue if entry[3]._lane is not lane]
            heapq.heapify(self._queue)
            for ticket in own:
                self._speak(ticket)
            self._lanes -= 1
            thread = self._thread
            if not self._lanes:
                self._thread = None
            self.condition.notify_all()
        for ticket in own:
            ticket._end(cancelled=True)
        if thread is threading.current_thread():  # the garbage collector closed the lane in the worker's thread
            return
        if not self._lanes and thread is not None:
            thread.join()
        with self.condition:
            self._closing += 1
            while self._running is lane:  # a waiting thread may be running the transfer itself
                self.condition.wait()
            self._closing -= 1

    def enqueue(self, ticket: Ticket, priority: float, deadline: float, *, wake: bool = True) -> None:
        """Puts a ticket in the queue. Unless `wake`, it is left to the thread that waits for it (see `Lane.submit`)."""
        ticket._asked = self.clock.now()
        with self.condition:
            if not ticket._lane.closed:
                heapq.heappush(self._queue, (priority, deadline, next(self._order), ticket))
                if wake:
                    self.condition.notify()
                else:
                    ticket._quiet = True
                    self._quiet += 1
                return
        ticket._end(cancelled=True)

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            with self.condition:
                while (len(self._queue) == self._quiet or self._running is not None) and self._thread is me:
                    self.condition.wait()
                if self._thread is not me:
                    return
                _, deadline, _, ticket = heapq.heappop(self._queue)
                self._speak(ticket)
                late = self.clock.now() > deadline
                if not late:  # from now on it cannot be withdrawn
                    self._running = ticket._lane
            if late:
                ticket._lane.trace.count(f"{ticket._lane.name}.missed")
                ticket._end(cancelled=True)
            else:
                self._transfer(ticket)
            del ticket  # otherwise an idle link would keep the last buffer alive

    def _claim(self, ticket: Ticket) -> bool:
        """Whether the waiting thread runs the transfer itself: the link is idle, and the transfer is the next one."""
        with self.condition:
            quiet = self._speak(ticket)
            mine = self._running is None and bool(self._queue) and self._queue[0][3] is ticket
            if not mine or ticket._lane.closed or self.clock.now() > self._queue[0][1]:
                if quiet:
                    self.condition.notify_all()  # the worker does it after those before it
                return False
            heapq.heappop(self._queue)
            self._running = ticket._lane
            return True

    def _speak(self, ticket: Ticket) -> bool:
        """Counts a ticket among those of the worker, or out of the queue. Returns whether it was a quiet one."""
        quiet, ticket._quiet = ticket._quiet, False
        self._quiet -= quiet
        return quiet

    def _transfer(self, ticket: Ticket) -> None:
        started = self.clock.now()
        before = self._ends[-1] if self._ends else -math.inf
        due, moved = started, 0
        _here.transfers = True
        try:
            assert ticket._work is not None
            moved = ticket._work()
            due = self._due(ticket, moved, self.clock.now() - started)
            spare = due - self.clock.now()
            if spare > 0:
                self.clock.sleep(spare)
        except BaseException as error:  # `Ticket.wait` raises it; its frames would keep the buffer
            ticket._error = error.with_traceback(None) if isinstance(error, EdgeError) else error
        finally:
            _here.transfers = False
        ticket.seconds = max(self.clock.now() - started, due - max(ticket._asked, before))
        if not ticket.failed:
            self.rate.add(moved, ticket.seconds)
        ticket._lane._moved(ticket, started, moved)
        ticket._end()
        with self.condition:
            self._running = None
            if len(self._queue) > self._quiet or self._closing:  # waking a thread for nothing takes long
                self.condition.notify_all()

    def _due(self, ticket: Ticket, nbytes: int, worked: float) -> float:
        """The time at which a transfer ends whose work took `worked` seconds, on a modelled link of this depth."""
        full = len(self._ends) == self._depth
        begun = max(ticket._asked, self._ends[0]) if full else ticket._asked
        self._moved_by = max(begun, self._moved_by) + nbytes / self._bandwidth_limit
        due = max(self._moved_by + self._latency, begun + worked)
        self._ends.append(due)
        return due

    def _cancel(self, ticket: Ticket) -> bool:
        before = ticket._after
        with self.condition:
            if before is None or ticket.done:
                place = next((i for i, entry in enumerate(self._queue) if entry[3] is ticket), None)
                if place is None:
                    return False
                del self._queue[place]
                heapq.heapify(self._queue)
                self._speak(ticket)
        if before is not None:  # it is not in the queue yet, and ends with the transfer that it follows
            return before.cancel()
        ticket._end(cancelled=True)
        return True


_shared: dict[str, Link] = {}
_sharing = threading.Lock()


class Lane(Closing):
    """One user's access to a link, which has the queue of the transfers of all its lanes.

    Counters (in `trace`): `<name>.bytes`, `.transfers`, `.busy_s`, `.stall_s` (waiting time of callers), `.hidden_s`
    (transfer time for which no caller waited), `.missed` (deadlines that passed before the transfer could start).
    """

    def __init__(
        self,
        name: str = "disk",
        *,
        trace: Trace | None = None,
        bandwidth_limit: float = math.inf,
        latency: float = 0.0,
        depth: int = 1,
        clock: Clock | None = None,
        link: Link | None = None,
    ) -> None:
        """Opens a lane of `link`, or of a new link with these properties (see `Link`)."""
        self.name = name
        self.trace = trace or Trace()
        self.link = link or Link(
            name, bandwidth_limit=bandwidth_limit, latency=latency, depth=depth, clock=clock
        )  # fmt: skip
        self.closed = False
        self.link.open()

    @classmethod
    def shared(cls, link: str = "disk", *, trace: Trace | None = None) -> Lane:
        """Opens a lane of the process's only link of that name, so that the most urgent transfer goes first."""
        with _sharing:
            found = _shared.setdefault(link, Link(link))
        return cls(link, trace=trace, link=found)

    @property
    def clock(self) -> Clock:
        return self.link.clock

    @property
    def rate(self) -> LinkRate:
        """The link's speed, learned from the transfers of all its users."""
        return self.link.rate

    def fetch(self, source: BlockSource, block: BlockId, into: memoryview, *, priority: float = 0.0) -> Ticket:
        """Asks for a block; lower priorities go first. `into` must not be used until the ticket is done."""
        nbytes = source.nbytes(block)

        def read() -> int:
            source.read(block, into)
            return nbytes

        return self.submit(str(block), read, nbytes, priority=priority)

    def submit(
        self,
        label: str,
        work: Callable[[], int],
        nbytes: int,
        *,
        priority: float = 0.0,
        deadline: float = math.inf,
        after: Ticket | None = None,
        wake: bool = True,
    ) -> Ticket:
        """Asks for any transfer over this link. `work` performs it, and returns the number of bytes moved.

        Lower `priority` goes first, then the earlier `deadline` (a reading of the clock), after which it is cancelled.
        It fails or is withdrawn with the transfer `after` which it runs. Without `wake` the thread that waits for the
        ticket does it itself if the link is idle; such a ticket must be waited for or withdrawn."""
        if self.closed:
            raise RuntimeError(f"lane {self.name} is closed")
        ticket = Ticket(self, label, work, nbytes, after)
        if after is None:
            self.link.enqueue(ticket, priority, deadline, wake=wake)
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
        """Withdraws requests that have not started, and waits for a running one. Other lanes of the link go on."""
        with self.link.condition:
            if self.closed:
                return
            self.closed = True
        self.link.close(self)

    def _moved(self, ticket: Ticket, started: float, nbytes: int) -> None:
        self.trace.count(f"{self.name}.bytes", nbytes)
        self.trace.count(f"{self.name}.transfers")
        self.trace.count(f"{self.name}.busy_s", ticket.seconds)
        self.trace.event(ticket.label, f"lane {self.name}", started, ticket.seconds, bytes=nbytes)

    def _waited(self, ticket: Ticket, started: float, stall: float) -> None:
        self.trace.count(f"{self.name}.stall_s", stall)
        self.trace.count(f"{self.name}.hidden_s", max(0.0, ticket.seconds - stall))
        if stall > 1e-4:
            self.trace.event(f"stall {ticket.label}", "compute", started, stall)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # a forked process has no worker threads
