"""Clocks: the system's own for real work, and any other one for tests and simulations."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and lets it pass. Readings are seconds from any start; they never fall."""

    def now(self) -> float:
        """The reading at this moment."""

    def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""


class SystemClock:
    """The clock of this machine, `time.perf_counter`."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
