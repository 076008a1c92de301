"""The host's own processor and memory; its link is the disk."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.buffers import page_buffer
from edge.devices.base import Estimate
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, Codec, Scanner, Vectors
from edge.ivf.dispatcher import Dispatcher
from edge.ivf.tiers import Scan
from edge.lanes import Lane
from edge.trace import Trace

_SPARE_SCANNERS = 2
"""Kept for the next search: making one and taking it down costs as much as scanning some lists."""


class CpuDevice:
    """Scans lists with the codec's scanners, which read them where they lie."""

    name = "cpu"

    def __init__(self, memory: MemoryBudget, *, link: Lane | None = None, trace: Trace | None = None) -> None:
        """
        Args:
            memory: the process's ledger.
            link: another lane that its lists come over; else one of the process's disk, which `close` closes.
        """
        self.memory = memory
        self.link = link or Lane.shared(trace=trace)
        self._own_link = link is None
        self._lock = threading.Lock()
        self._spare: weakref.WeakKeyDictionary[Codec, list[Scanner]] = weakref.WeakKeyDictionary()

    def allocate(self, nbytes: int) -> Bytes:
        """A buffer in host memory. The caller holds a lease for it."""
        return page_buffer(nbytes)

    def search(self, codec: Codec, queries: Vectors, scans: Iterable[Scan], dispatcher: Dispatcher) -> None:
        """Scans part by part in the caller's thread, each for all queries that probe its list."""
        heaps = dispatcher.heaps()
        scanners: dict[int, Scanner] = {}
        try:
            for scan in scans:
                try:
                    for codes, labels in scan.pieces():
                        for query in scan.queries:
                            scanner = scanners.get(query)
                            if scanner is None:
                                scanner = scanners[query] = self._scanner(codec)
                                scanner.set_query(queries[query])
                            scanner.scan(codes, labels, heaps.scores[query], heaps.labels[query])
                finally:
                    scan.close()
                dispatcher.scanned(scan.queries)
        finally:
            with self._lock:
                self._spare[codec] = [*self._spare.get(codec, []), *scanners.values()][:_SPARE_SCANNERS]

    def _scanner(self, codec: Codec) -> Scanner:
        with self._lock:
            spare = self._spare.get(codec)
            if spare:
                return spare.pop()
        return codec.scanner()

    def layer_kernel(self, spec: Any) -> Any:
        """Layers run in a runtime (`edge.runtimes`), not here.

        Raises:
            CapabilityError: always.
        """
        raise CapabilityError("device cpu runs no layers itself: a runtime does (onnx, numpy)")

    def profile(self, stage: str, load: int) -> Estimate:
        """Measures stage `scan`: inner products of `load` queries with 4 MB of float32 vectors.

        Raises:
            CapabilityError: another stage.
        """
        if stage != "scan":
            raise CapabilityError(f"device cpu profiles the stage scan, not {stage!r}")
        with self.memory.reserve("profile", 4 << 20):
            vectors = np.ones((4096, 256), np.float32)
            query = np.ones(256, np.float32)
            vectors @ query
            started = time.perf_counter()
            for _ in range(load):
                vectors @ query
            seconds = time.perf_counter() - started
        return Estimate(latency=seconds, throughput=load / seconds, nbytes=vectors.nbytes)

    def close(self) -> None:
        """Ends its link."""
        if self._own_link:
            self.link.close()
