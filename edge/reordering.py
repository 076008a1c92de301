"""Which waiting request goes next: the one that reuses most and computes least (RAGCache, section 5.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge.errors import ConfigError

Request = TypeVar("Request")


@dataclass(slots=True)
class _Waiting(Generic[Request]):
    request: Request
    passed: int = 0


class RequestQueue(Generic[Request]):
    """Requests ordered by cached length / computed length as things are when one is taken, equals by arrival.

    Serving what is cached before it is evicted raises the hit rate. A request that so many later ones have overtaken as
    the window allows goes before all that came after it. Thread-safe.
    """

    def __init__(self, lengths: Callable[[Request], tuple[int, int]], *, window: int = 32) -> None:
        """An empty queue.

        Args:
            lengths: tokens of a request that are cached now, and tokens that must be computed.
            window: later arrivals that may go before a request; 0 serves in order of arrival.

        Raises:
            ConfigError: the window is negative.
        """
        if window < 0:
            raise ConfigError(f"the reordering window is a number of requests of at least 0, not {window}")
        self.window = window
        self._lengths = lengths
        self._waiting: list[_Waiting[Request]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        """Adds a request."""
        with self._lock:
            self._waiting.append(_Waiting(request))

    def pop(self) -> Request | None:
        """Takes the request whose turn it is; None when nobody waits."""
        with self._lock:
            if not self._waiting:
                return None
            # Whoever has been overtaken often enough bars the way to all behind it.
            bar = next((i for i, entry in enumerate(self._waiting) if entry.passed >= self.window), None)
            eligible = self._waiting if bar is None else self._waiting[: bar + 1]
            # Of equals, `max` takes the first.
            chosen = max(range(len(eligible)), key=lambda i: self._priority(eligible[i].request))
            for entry in self._waiting[:chosen]:
                entry.passed += 1
            return self._waiting.pop(chosen).request

    def _priority(self, request: Request) -> float:
        cached, computed = self._lengths(request)
        return cached / computed if computed else float("inf")
