"""Clocks: the system's clock for real work, and the interface for clocks of tests and simulations."""

from __future__ import annotations

import time
from typing import Protocol


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
