"""The memory the process really holds: anonymous resident bytes, their high-water mark, and trimming of the heap. The
kernel can drop file-backed pages, and keeps no high-water mark of the others, so `ResidentWatch` samples."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import psutil

Own = TypeVar("Own", bound="Closing")

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""glibc's numbers for the parameters M_ARENA_MAX and M_MMAP_THRESHOLD."""
_PR_SET_THP_DISABLE = 41
"""Linux's number for the option of `prctl`."""


def anonymous_resident() -> int:
    """Anonymous resident bytes of this process (RssAnon on Linux; all resident bytes on other systems)."""
    if sys.platform == "linux":
        # statm is one short line: pages of size, resident, shared (file-backed and shared memory), ...
        with open("/proc/self/statm", "rb") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return int(psutil.Process().memory_info().rss)


def reported_nbytes(field: str) -> int | None:
    """Bytes that Linux reports of this process, such as `VmHWM`; None where nothing is reported."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def group_limit(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that the control groups of this process allow, as a container sets them; None without such a limit."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    found = []
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds not in ("", "memory"):
            continue
        place, name = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        own = place / path.lstrip("/")
        for folder in (own, *own.parents):  # a group is bound by those around it
            with suppress(OSError, ValueError):
                found.append(int((folder / name).read_text()))
            if folder == place:
                break
    return min((limit for limit in found if limit < psutil.virtual_memory().total), default=None)


def trim_heap() -> None:
    """Returns free heap pages to the system, if the C library can (glibc)."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def share_heap() -> bool:
    """Makes all threads allocate from one heap (glibc), and returns whether it did. Runs once. With eight heaps the
    process would hold the memory of eight requests while one runs."""
    return _set_heap(_ARENA_MAX, 1)


@cache
def return_large_blocks() -> bool:
    """Makes the C library return freed blocks of 1 MB at once (glibc); returns whether it did. Runs once."""
    return _set_heap(_MMAP_THRESHOLD, 1 << 20)


def _set_heap(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(parameter, value))


@cache
def small_pages() -> bool:
    """Makes the system give this process and its later children small pages only (Linux), and returns whether it did.
    Runs once. With huge pages the first byte that is written makes 2 MB resident."""
    if sys.platform != "linux":
        return False
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_PR_SET_THP_DISABLE, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0


@dataclass(slots=True)
class Growth:
    """Anonymous bytes by which the process grew; set when the measured block has ended."""

    nbytes: int = 0


@contextmanager
def measured_growth() -> Iterator[Growth]:
    """Measures the memory that libraries allocate inside the block (a module's import, a tokenizer's tables)."""
    trim_heap()
    before = anonymous_resident()
    growth = Growth()
    yield growth
    trim_heap()
    growth.nbytes = max(0, anonymous_resident() - before)


class Closing:
    """A context manager that closes itself at the end. The base of objects that hold memory, files or threads."""

    __slots__ = ()

    def close(self) -> None:
        """Frees the memory and the files that the object holds. Each subclass defines it."""
        raise NotImplementedError

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ResidentWatch(Closing):
    """Samples anonymous resident memory from a thread and keeps the highest value seen."""

    def __init__(self, interval: float = 0.02) -> None:
        """Starts sampling every `interval` seconds. At 5 ms samples took 2 % of the processor time of a reranking."""
        self.high_water = anonymous_resident()
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-resident-watch", daemon=True)
        self._thread.start()

    def sample(self) -> int:
        resident = anonymous_resident()
        if resident > self.high_water:
            self.high_water = resident
        return resident

    def close(self) -> None:
        self.sample()
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes = [ctypes.c_size_t]
        function.restype = ctypes.c_int
    return function
