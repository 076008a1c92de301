"""The device of the host's own processor and memory, whose link is the disk; the profile by own searches; and
`LimitedDevice`: the same behind a limit of bytes, and a link and a scan of given speeds, as a model of an
accelerator."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.cache.cached_block import page_buffer
from edge.config import parse_size
from edge.errors import BudgetExceeded, CapabilityError
from edge.ivf.base import Bytes, Codec, CodecSpec, Ids, Scanner
from edge.ivf.device import Candidates, Estimate, ListScan, SearchPlace, SearchRequest
from edge.ivf.plan import COPY_NBYTES
from edge.link import Lane
from edge.plugins import number
from edge.trace import Trace

_SPARE_SCANNERS = 2
"""Number of scanners kept for the next search. To make and destroy a scanner costs as much as scanning some lists."""

_RUN_ROWS = 32
"""Selected rows are scanned in place if they form runs of at least this many rows on average, and otherwise copied."""


class HostMemory:
    """A device whose buffers are arrays of this process. Its link is the disk, unless another one is given."""

    in_host_memory = True

    def __init__(self, memory: MemoryBudget, *, link: Lane | None = None, trace: Trace | None = None) -> None:
        """Takes the process's budget. Without `link` it opens a lane of the process's disk, which `close` closes."""
        self.memory = memory
        self.link = link or Lane.shared(trace=trace)
        self._own_link = link is None

    def allocate(self, nbytes: int) -> Bytes:
        return page_buffer(nbytes)

    def write(self, buffer: Bytes, data: Bytes) -> None:
        buffer[: data.size] = data.reshape(-1)

    def free(self, buffer: Bytes) -> None:
        """Does nothing. The system gets the pages back when the last reference is gone."""

    def close(self) -> None:
        if self._own_link:
            self.link.close()


class MeasuredScan:
    """The capability `Profile` of a device that holds lists and searches them."""

    def profile(self: SearchPlace, stage: str, load: int) -> Estimate:
        """Measures stage `scan`: a search of `load` queries in 4 MB of float32 vectors on the device."""
        if stage != "scan":
            raise CapabilityError(f"device {self.name} profiles the stage scan, not {stage!r}")
        from edge.devices.faiss_codec import FaissCodec

        random = np.random.default_rng(0)  # of equal rows a device returns all
        vectors, queries = (random.standard_normal((rows, 256), np.float32) for rows in (4096, load))
        codec = FaissCodec(CodecSpec("flat", 256, 1024))
        with self.memory.reserve("profile", vectors.nbytes):
            buffer = self.allocate(vectors.nbytes)
            self.write(buffer, vectors.view(np.uint8))
            codes = buffer.reshape(4096, -1) if self.in_host_memory else buffer
            seconds = 0.0
            for _ in range(2):  # the first round compiles or loads the kernels
                scan = ListScan(codes, 0, 4096, None, range(load))
                request = SearchRequest(codec, queries, [scan], np.arange(4096), Candidates.empty(load, 10))
                started = time.perf_counter()
                self.search(request)
                seconds = time.perf_counter() - started
            self.free(buffer)
        return Estimate(latency=seconds, throughput=load / seconds, nbytes=vectors.nbytes)


class CpuDevice(HostMemory, MeasuredScan):
    """Scans lists in place, with the codec's scanners."""

    name = "cpu"

    def __init__(self, memory: MemoryBudget, *, link: Lane | None = None, trace: Trace | None = None) -> None:
        super().__init__(memory, link=link, trace=trace)
        self._lock = threading.Lock()
        self._spare: weakref.WeakKeyDictionary[Codec, list[Scanner]] = weakref.WeakKeyDictionary()

    def search(self, request: SearchRequest) -> Candidates:
        seen = request.seen
        if seen.prepared is None:
            seen.prepared = _Scanners(self, request.codec)
        scanners: _Scanners = seen.prepared
        for item in request.lists:
            for codes, labels in pieces(item, request.labels):
                for query in item.queries:
                    scanner = scanners.of.get(query)
                    if scanner is None:
                        scanner = scanners.of[query] = self._scanner(request.codec)
                        scanner.set_query(request.queries[query])
                    scanner.scan(codes, labels, seen.scores[query], seen.labels[query])
        return seen

    def _scanner(self, codec: Codec) -> Scanner:
        with self._lock:
            spare = self._spare.get(codec)
            if spare:
                return spare.pop()
        return codec.scanner()

    def _take_back(self, codec: Codec, scanners: list[Scanner]) -> None:
        with self._lock:
            self._spare[codec] = [*self._spare.get(codec, []), *scanners][:_SPARE_SCANNERS]


class _Scanners:
    """The scanners of one search, by query. Later searches reuse them."""

    def __init__(self, device: CpuDevice, codec: Codec) -> None:
        self.of: dict[int, Scanner] = {}
        self._device = device
        self._codec = codec

    def __del__(self) -> None:
        self._device._take_back(self._codec, list(self.of.values()))


def pieces(item: ListScan, labels: Ids) -> Iterator[tuple[Bytes, Ids]]:
    """The selected rows of a list, in contiguous pieces: codes [n, code_size] and labels [n]."""
    codes, own, rows = item.codes, labels[item.first : item.first + item.count], item.rows
    if rows is None:
        yield codes, own
        return
    starts = np.concatenate(([0], np.flatnonzero(np.diff(rows) != 1) + 1))
    if len(rows) >= _RUN_ROWS * len(starts):
        ends = np.concatenate((starts[1:], [len(rows)])) - 1
        for first, last in zip(rows[starts].tolist(), rows[ends].tolist(), strict=True):
            yield codes[first : last + 1], own[first : last + 1]
        return
    step = max(1, COPY_NBYTES // codes.shape[1])
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        yield codes[some], own[some]


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
