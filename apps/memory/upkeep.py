"""`Upkeep`: keeps the vector index in order in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from edge.connection import Connection
from edge.errors import EdgeError
from edge.ivf.base import MaintenanceReport
from edge.ivf.index import VectorIndex

_CHECK_ROWS = 256
"""Rows this process writes before it looks again whether something is to be done."""

Write = Callable[[], AbstractContextManager[Connection]]


class Upkeep:
    """Runs the index's maintenance when enough was written. Thread-safe; while another process is at it, nothing is
    done here."""

    def __init__(
        self, index: Callable[[], VectorIndex | None], write: Write, finish: Callable[[VectorIndex], object]
    ) -> None:
        """`finish` makes the vectors that an interrupted rebuild has left to make."""
        self._index = index
        self._write = write
        self._finish = finish
        self._rows = _CHECK_ROWS  # the first write of a process looks, so that many short ones get it done, too
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def wrote(self, rows: int) -> None:
        """Notes that rows were written or deleted, and begins maintenance in the background if it may be due."""
        with self._starting:
            self._rows += rows
            if self._rows < _CHECK_ROWS or self._stop.is_set() or (self._thread and self._thread.is_alive()):
                return
            self._rows = 0
            self._thread = threading.Thread(target=self._run, name="edge-memory-upkeep", daemon=True)
            self._thread.start()

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Does now what is due; None if nothing was ever stored.

        Args:
            full: also merges and reclaims everything.
        """
        index = self._index()
        if index is None:
            return None
        self._finish(index)
        return index.maintain(self._write, full=full, stop=self._stop)

    def close(self) -> None:
        """Ends maintenance after its present step."""
        self._stop.set()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self.maintain()
        except EdgeError as error:  # nothing is lost: what is not in order yet is found all the same, only slower
            logging.getLogger(__name__).warning("the memory's index could not be put in order: %s", error)
