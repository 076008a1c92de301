"""`Held`: a lane whose worker is kept busy."""

from __future__ import annotations

import threading

from edge.link import Lane
from naive.waiting import PATIENCE_S


class Held:
    """Keeps a lane's worker busy until `open`, so that a queue builds up behind it."""

    def __init__(self, lane: Lane) -> None:
        self._gate = threading.Event()
        entered = threading.Event()

        def work() -> int:
            entered.set()
            assert self._gate.wait(PATIENCE_S)
            return 0

        self.ticket = lane.submit("held", work, 0, priority=-100.0)
        assert entered.wait(PATIENCE_S)

    def open(self) -> None:
        self._gate.set()
