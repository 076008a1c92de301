"""Another device behind a limit of bytes, and a link and a scan of given speeds, as a model of an accelerator."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.cpu import CpuDevice, MeasuredScan
from edge.errors import BudgetExceeded
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, SearchPlace, SearchRequest
from edge.link import Lane
from edge.plugins import number
from edge.trace import Trace

_LONGEST_S = 60
"""Largest latency of a modelled link."""

_LEAST = 1e-9
"""Least bytes per second of a modelled link or scan."""

_DEEPEST = 1 << 20
"""Most transfers under way over a modelled link."""


class LimitedDevice(MeasuredScan):
    """A device with limited memory and a limited link. It computes on the device that it wraps."""

    kind = "limited"

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = 64 << 20,
        bandwidth: float | str = 1e9,
        latency: float | str = 0.0,
        depth: int | str = 1,
        scan: float | str = math.inf,
        inner: SearchPlace | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`cap`, `bandwidth` and `scan` (bytes of codes a second, shared by all searches) are numbers or sizes such as
        `64MB`; `latency` is in seconds, `depth` the transfers whose latencies overlap. `inner` is the wrapped device,
        which the caller closes; None the host."""
        cap = parse_size(cap)
        bandwidth, self._scan = (
            number(self.kind, name, parse_size(given) if isinstance(given, str) else given, _LEAST, math.inf)
            for name, given in (("bandwidth", bandwidth), ("scan", scan))
        )
        latency = number(self.kind, "latency", latency, 0, _LONGEST_S)
        depth = int(number(self.kind, "depth", depth, 1, _DEEPEST, whole=True))
        self._scanning = threading.Lock()
        self._inner: SearchPlace = inner or CpuDevice(memory)
        self._own = inner is None
        self.name = f"{self.kind} {self._inner.name}"
        self.in_host_memory = self._inner.in_host_memory
        try:
            self._lease = memory.reserve(self.name, cap)
        except BudgetExceeded:
            if self._own:
                self._inner.close()
            raise
        self.link = Lane("link", trace=trace, bandwidth_limit=bandwidth, latency=latency, depth=depth)
        self.memory = MemoryBudget(cap, part=True)

    def allocate(self, nbytes: int) -> Any:
        return self._inner.allocate(nbytes)

    def write(self, buffer: Any, data: Bytes) -> None:
        """Fills a buffer. The link's worker calls it, and waits as long as the link needs."""
        self._inner.write(buffer, data)

    def free(self, buffer: Any) -> None:
        self._inner.free(buffer)

    def search(self, request: SearchRequest) -> Candidates:
        """Scans on the wrapped device, and waits as long as the modelled rate needs."""
        if math.isinf(self._scan):
            return self._inner.search(request)
        rows = sum((item.count if item.rows is None else len(item.rows)) * len(item.queries) for item in request.lists)
        with self._scanning:
            started = time.perf_counter()
            found = self._inner.search(request)
            due = started + rows * request.codec.spec.code_size / self._scan
            time.sleep(max(0.0, due - time.perf_counter()))
        return found

    def close(self) -> None:
        self.link.close()
        self._lease.release()
        if self._own:
            self._inner.close()
