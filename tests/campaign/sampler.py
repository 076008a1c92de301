"""Looks at the anonymous memory of a process and its descendants from outside (Linux)."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time

_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
"""The number of the system call that compares two processes."""
_KCMP_VM = 1
_libc = ctypes.CDLL(None)


class Sampler:
    """Follows a process tree in a thread of its own: processes whose parent belongs to it, or that are of the session
    of the first one, which was started with `start_new_session=True`. A process that starts another one with `vfork`
    lends it its memory until the other program is loaded: the same bytes count once. `peak`: the largest sum of RssAnon
    at a look, in bytes; `processes`: the most that were seen at once. Looks are `interval` seconds apart, and searches
    for new processes, which look at all of the machine, `search`."""

    def __init__(self, pid: int, interval: float = 0.002, search: float = 0.0) -> None:
        self.pid = pid
        self.interval = interval
        self.search = search
        self._searched = -search
        self.peak = 0
        self.processes = 0
        self._files: dict[int, int] = {}  # pid of a member: descriptor of its status
        self._lent: dict[int, int] = {}  # pid of a member that may still run in another one's memory: that one's pid
        self._others: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def look(self) -> None:
        """Looks at the tree's anonymous memory now."""
        if time.monotonic() - self._searched >= self.search:
            self._searched = time.monotonic()
            self._find()
        total = members = 0
        for pid in list(self._files):
            lent = self._in_lent_memory(pid)
            nbytes = self._resident(pid)
            if nbytes is not None:
                total += 0 if lent else nbytes
                members += 1
        self.peak = max(self.peak, total)
        self.processes = max(self.processes, members)

    def _watch(self) -> None:
        while not self._done.is_set():
            started = time.perf_counter()
            self.look()
            self._done.wait(max(0.0, self.interval - (time.perf_counter() - started)))

    def _find(self) -> None:
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._others &= present
        for pid in sorted(present - self._others - self._files.keys()):
            if self._belongs(pid):
                try:
                    self._files[pid] = os.open(f"/proc/{pid}/status", os.O_RDONLY)
                except OSError:
                    continue
            else:
                self._others.add(pid)

    def _belongs(self, pid: int) -> bool:
        if pid == self.pid:
            return True
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return False
        parent = int(fields[1])
        if parent in self._files:
            self._lent[pid] = parent
        return parent in self._files or int(fields[3]) == self.pid

    def _in_lent_memory(self, pid: int) -> bool:
        """Whether the process has no memory of its own yet. Once it has, that never changes."""
        lender = self._lent.get(pid)
        if lender is None or _KCMP is None:
            return False
        if _libc.syscall(_KCMP, pid, lender, _KCMP_VM, 0, 0) == 0:
            return True
        del self._lent[pid]
        return False

    def _resident(self, pid: int) -> int | None:
        """RssAnon in bytes; None for a process that has ended."""
        try:
            status = os.pread(self._files[pid], 4096, 0)
        except OSError:
            os.close(self._files.pop(pid))
            self._lent.pop(pid, None)
            return None
        start = status.find(b"RssAnon:")
        return 0 if start < 0 else int(status[start + 8 :].split(None, 1)[0]) * 1024
