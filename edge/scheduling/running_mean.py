"""`RunningMean`: the expected value and an upper bound of a time, from earlier readings."""

from __future__ import annotations

import threading

_SMOOTHING = 0.2
_DEVIATIONS = 2.0


class RunningMean:
    """Exponentially smoothed mean and deviation of readings. The first reading counts fully. Thread-safe."""

    def __init__(self, mean: float = 0.0, deviation: float = 0.0, *, count: int = 0) -> None:
        """
        Args:
            mean, deviation: values assumed from `count` earlier readings.
        """
        self._mean = mean
        self._variance = deviation**2
        self._count = count
        self._lock = threading.Lock()

    @property
    def mean(self) -> float:
        """Smoothed mean of the readings; 0 before the first."""
        return self._mean

    @property
    def count(self) -> int:
        """Number of readings, including assumed ones."""
        return self._count

    @property
    def upper(self) -> float:
        """The mean plus two deviations."""
        with self._lock:
            return self._mean + _DEVIATIONS * float(self._variance**0.5)

    def add(self, reading: float) -> None:
        """Adds one reading."""
        with self._lock:
            self._count += 1
            step = max(_SMOOTHING, 1 / self._count)
            off = reading - self._mean
            self._mean += step * off
            self._variance = (1 - step) * (self._variance + step * off**2)
