"""`Expected`: what a time will be, and what it will hardly exceed, from what it was."""

from __future__ import annotations

import threading

_SMOOTHING = 0.2
_DEVIATIONS = 2.0


class Expected:
    """Exponentially smoothed mean and deviation of readings; the first count fully. Thread-safe."""

    def __init__(self, mean: float = 0.0, deviation: float = 0.0, *, count: int = 0) -> None:
        """
        Args:
            mean, deviation: of `count` readings that are taken for granted.
        """
        self._mean = mean
        self._variance = deviation**2
        self._count = count
        self._lock = threading.Lock()

    @property
    def mean(self) -> float:
        """0 before the first reading."""
        return self._mean

    @property
    def count(self) -> int:
        """Readings so far."""
        return self._count

    @property
    def upper(self) -> float:
        """Two deviations above the mean."""
        with self._lock:
            return self._mean + _DEVIATIONS * float(self._variance**0.5)

    def add(self, reading: float) -> None:
        """Takes in one more."""
        with self._lock:
            self._count += 1
            step = max(_SMOOTHING, 1 / self._count)
            off = reading - self._mean
            self._mean += step * off
            self._variance = (1 - step) * (self._variance + step * off**2)
