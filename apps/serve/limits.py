"""What a client may take of the server: bytes, seconds, connections, and its share of what all clients use."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server; sizes in bytes, times in seconds.

    Attributes:
        body: of a request's body.
        connections: that are open at once. One more is closed before anything is read from it.
        workers: requests that are worked on at once. Others wait with their bodies read.
        head_s: for the first line and the headers of a request.
        body_s: for its body.
        pause_s: between two pieces of its body, and for a client to take a piece of the answer.
        idle_s: that a connection may stay open between two requests.
        request_s: for the work, unless the request says less.
        rate: requests a minute for each token, or for each address where no token is asked for; 0 for no bound.
    """

    body: int = 8 << 20
    connections: int = 64
    workers: int = 24
    head_s: float = 10.0
    body_s: float = 60.0
    pause_s: float = 20.0
    idle_s: float = 15.0
    request_s: float = 300.0
    rate: int = 0


CONNECTION_BYTES = 96 << 10
"""Memory of an open connection: what the HTTP library keeps of its head, the buffers of both directions."""

WORKER_BYTES = 160 << 10
"""Memory of a thread that works on a request: the touched part of its stack, Python's own frames and objects."""


GRACE_S = 3.0
"""When the server ends, requests may go on for so long."""

LEAVE_S = 5.0
"""Then they are withdrawn, and their threads have so long to notice. Whatever works longer is cut off."""

CLOSE_S = 1.0
"""Closing what is open has at least so long, even if all that time has passed."""


class Shares:
    """A client may grow as long as it then holds at most as much as is left for all others. Thread-safe.

    So one client alone holds up to a half of the whole, and each of n greedy clients an (n + 1)th part. Another client
    always finds something left.

    Source: A. K. Choudhury, E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
    Transactions on Networking 6 (1998), with an alpha of 1.
    """

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def alone(self) -> int:
        """The most that a client may hold if no other holds anything."""
        return self._whole // 2

    def grows(self, client: str, amount: int) -> bool:
        """Adds an amount to what a client holds, if it may hold that much; returns whether it may."""
        if not amount:
            return True
        with self._lock:
            left = self._whole - self._held.total() - amount
            if self._held[client] + amount > left:
                return False
            self._held[client] += amount
            return True

    def shrinks(self, client: str, amount: int) -> None:
        """Takes an amount away from what a client holds."""
        with self._lock:
            self._held[client] -= amount
            if not self._held[client]:
                del self._held[client]
