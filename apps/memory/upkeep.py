"""`Upkeep`: maintains the vector index in the background."""

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
"""The number of rows that this process writes before it checks again whether maintenance is due."""

Write = Callable[[], AbstractContextManager[Connection]]
MakeWay = Callable[[Callable[[], MaintenanceReport]], MaintenanceReport]


class Upkeep:
    """Runs the index's maintenance after enough writes. Thread-safe. While another process maintains the index, this
    one does nothing."""

    def __init__(
        self,
        index: Callable[[], VectorIndex | None],
        write: Write,
        finish: Callable[[VectorIndex], object],
        make_way: MakeWay,
    ) -> None:
        """
        Args:
            index: gives the vector index; None if there is none yet.
            write: begins a transaction.
            finish: makes the vectors that an interrupted rebuild has not made yet.
            make_way: calls a function, and calls it again without the models if the memory was not enough.
        """
        self._index = index
        self._write = write
        self._finish = finish
        self._make_way = make_way
        self._rows = _CHECK_ROWS  # the first write of a process checks, so that short processes maintain it, too
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def wrote(self, rows: int) -> None:
        """Counts rows that were written or deleted, and starts maintenance in the background if it may be due."""
        with self._starting:
            self._rows += rows
            if self._rows < _CHECK_ROWS or self._stop.is_set() or (self._thread and self._thread.is_alive()):
                return
            self._rows = 0
            self._thread = threading.Thread(target=self._run, name="edge-memory-upkeep", daemon=True)
            self._thread.start()

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Runs all due maintenance now; None if nothing was ever stored.

        Args:
            full: run all maintenance, due or not, down to one segment without deleted rows.
        """
        index = self._index()
        if index is None:
            return None
        self._finish(index)
        return self._make_way(lambda: index.maintain(self._write, full=full, stop=self._stop))

    def close(self) -> None:
        """Stops maintenance after its current step."""
        self._stop.set()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self.maintain()
        except EdgeError as error:  # no data is lost: without maintenance, searches are only slower
            logging.getLogger(__name__).warning("the memory's index could not be put in order: %s", error)
