"""Lanes: the transfers over one physical link (disk to host, host to device), ordered by priority and deadline.

A `Link` has one worker thread and moves one block at a time. Every user of the link has its own `Lane`, which counts
for that user's trace. Positioned reads release the interpreter lock, so transfers overlap with compute. A link learns
its latency and bandwidth. A lane counts the seconds its callers waited, and the transfer time that their work hid.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

from edge.blocks import BlockId, BlockSource
from edge.clock import Clock
from edge.closing import Closing
from edge.link import Link, Ticket
from edge.link_rate import LinkRate
from edge.trace import Trace

_shared: dict[str, Link] = {}
_sharing = threading.Lock()


class Lane(Closing):
    """One user's access to a link.

    Counters (in `trace`): `<name>.bytes`, `.transfers`, `.busy_s`, `.stall_s` (waiting time of callers), `.hidden_s`
    (transfer time for which no caller waited), `.missed` (deadlines that passed before the transfer could start).

    Attributes:
        link: the link, with the queue of the transfers of all its lanes.
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
        """Opens a lane of the process's only link of that name.

        Models, lists and states come from the same disk, so they share one queue, and the most urgent one goes first.
        """
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
        """Asks for a block. `into` must not be used until the ticket is done.

        Args:
            priority: lower ones go first.
        """
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

        Args:
            priority: lower ones go first.
            deadline: a reading of the clock. Among equal priorities, the earlier deadline goes first. A transfer that
                has not started by then is cancelled.
            after: a transfer, perhaps over another link, that must end first. This one fails or is withdrawn with it.
            wake: whether the link's worker is woken for it. If not, the thread that waits for the ticket transfers the
                block itself if the link is idle then. This saves switches of threads where every request is waited for
                soon. Such a ticket must be waited for or withdrawn.

        Raises:
            RuntimeError: the lane is closed.
        """
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

    def _missed(self) -> None:
        self.trace.count(f"{self.name}.missed")

    def _waited(self, ticket: Ticket, started: float, stall: float) -> None:
        self.trace.count(f"{self.name}.stall_s", stall)
        self.trace.count(f"{self.name}.hidden_s", max(0.0, ticket.seconds - stall))
        if stall > 1e-4:
            self.trace.event(f"stall {ticket.label}", "compute", started, stall)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.clear)  # a forked process has no worker threads
