"""`Background`: a thread that runs one piece of work after another; newly submitted work replaces waiting work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

Work = Callable[[], object]


class Behind(Protocol):
    """Runs work beside its caller."""

    @property
    def busy(self) -> bool:
        """Whether some work waits or is running."""

    @property
    def seconds(self) -> float:
        """Total seconds of the work so far."""

    def submit(self, work: Work) -> None:
        """Submits work. It replaces work that is still waiting."""

    def settle(self) -> None:
        """Drops waiting work, and waits for running work to end.

        Raises:
            Exception: raised again if a piece of work raised it since the last call.
        """


class Background:
    """A thread that runs while there is work. `submit` and `settle` belong to one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: Work | None = None
        self._thread: threading.Thread | None = None
        self._began: float | None = None
        self._took = 0.0
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """See `Behind`."""
        with self._lock:
            return self._thread is not None

    @property
    def seconds(self) -> float:
        """See `Behind`."""
        with self._lock:
            return self._took + (0.0 if self._began is None else time.perf_counter() - self._began)

    def submit(self, work: Work) -> None:
        """See `Behind`."""
        with self._lock:
            self._waiting = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """See `Behind`."""
        with self._lock:
            self._waiting = None
            thread = self._thread
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it would keep this frame, and the frame would keep it, with the callers' arrays

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._waiting = self._waiting, None
                if work is None:
                    self._thread = None
                    return
                self._began = began = time.perf_counter()
            try:
                work()
            except BaseException as error:  # `settle` raises it
                self._error = error
            finally:
                with self._lock:
                    self._took += time.perf_counter() - began
                    self._began = None
