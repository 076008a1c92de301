"""How much memory the process really holds: anonymous resident bytes, their high-water mark, and giving the heap back.

The kernel keeps a high-water mark of all resident pages, file-backed ones included, but none of the anonymous ones, so
the watch samples. File-backed pages (the code of libraries, a mapped file) can be dropped by the kernel at any moment;
anonymous ones cannot, and are what a limit must bound.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import TracebackType

import psutil

_ARENA_MAX = -8
"""glibc's number of the setting."""


def anonymous_resident() -> int:
    """Anonymous resident bytes of this process (RssAnon on Linux; where the system does not tell, all resident)."""
    if sys.platform == "linux":
        # statm is one short line: pages of size, resident, shared (file-backed and shared memory), ...
        with open("/proc/self/statm", "rb") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _page_size()
    return int(psutil.Process().memory_info().rss)


def trim_heap() -> None:
    """Hands free heap pages back to the system where the C library can (glibc); elsewhere nothing happens."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def share_heap() -> bool:
    """Makes all threads allocate from one heap where the C library would give each its own (glibc); done once.

    A request's arrays are freed to the heap of the thread that ran it and wait there for the next request of that
    thread. With a heap for each of eight threads, the process would hold the memory of eight requests while one runs.

    Returns:
        Whether there was something to set. Heaps that exist by then stay.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_ARENA_MAX, 1))


@dataclass(slots=True)
class Growth:
    """Anonymous bytes the process grew by; known when the block that measured it has ended."""

    nbytes: int = 0


@contextmanager
def measured_growth() -> Iterator[Growth]:
    """Measures what libraries allocate on their own inside the block (a module's import, a tokenizer's tables)."""
    trim_heap()
    before = anonymous_resident()
    growth = Growth()
    yield growth
    trim_heap()
    growth.nbytes = max(0, anonymous_resident() - before)


class ResidentWatch:
    """Samples anonymous resident memory from a thread and keeps the highest value seen."""

    def __init__(self, interval: float = 0.005) -> None:
        """Starts sampling every `interval` seconds; a spike shorter than that can be missed."""
        self.high_water = anonymous_resident()
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-resident-watch", daemon=True)
        self._thread.start()

    def sample(self) -> int:
        """Takes a sample now, in bytes."""
        resident = anonymous_resident()
        if resident > self.high_water:
            self.high_water = resident
        return resident

    def reset(self) -> None:
        """Starts a new high-water mark from the present value."""
        self.high_water = anonymous_resident()

    def close(self) -> None:
        """Stops sampling."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> ResidentWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sample()
        self.close()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()


@cache
def _page_size() -> int:
    return os.sysconf("SC_PAGE_SIZE")


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes = [ctypes.c_size_t]
        function.restype = ctypes.c_int
    return function
