"""`Shares`: how much each client may hold of something that all clients use."""

from __future__ import annotations

import threading
from collections import Counter
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from edge.apps.serve.security import by_socket, given_token, single_headers

CLIENT: ContextVar[str] = ContextVar("edge_client", default="")
"""The client of the request that is worked on, as `client_of` names it."""


def client_of(scope: Any) -> str:
    """A client's name: its address and a checksum of the key that it brings. Where no token is required, programs of
    one machine are told apart by the keys that they send anyway."""
    if by_socket(scope):
        return "owner's socket"
    address = str((scope.get("client") or ("", 0))[0])
    key = given_token(single_headers(scope["headers"]))
    return f"{address} {sha256(key.encode('utf-8', 'replace')).hexdigest()}" if key else address


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
