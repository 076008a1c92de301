"""`Stops`: notices when the process or the machine stood still, so that a bench leaves out that time."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_TICK_S = 0.02
_STOP_S = 0.5


class Stops:
    """A thread that sleeps again and again, and counts the sleeps that lasted much too long. A context manager.

    Attributes:
        seconds: total of the stops so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-stops", daemon=True)

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(_TICK_S):
            now = time.perf_counter()
            self.seconds += self.stopped(now - last)
            last = now

    @staticmethod
    def stopped(passed: float) -> float:
        """The seconds of a stop between two ticks that are `passed` seconds apart; 0 if it is no stop."""
        return passed - _TICK_S if passed > _STOP_S else 0.0

    def __enter__(self) -> Stops:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
