"""`cuda`: a GPU as a place for lists and layers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from edge.budget import MemoryBudget
from edge.devices.cuda.card import Pinned, Streams, UploadBuffers, close_card, open_card
from edge.devices.cuda.search import DeviceSearch
from edge.devices.profiling import MeasuredScan
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, Event, SearchRequest
from edge.link import Lane
from edge.trace import Trace

_STAGING_NBYTES = 1 << 20
"""Bytes of each of the two buffers that lists go through. A list of 256 rows has about 100 kB."""


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Bytes on the device, and the transfer that wrote them last."""

    tensor: Any
    filled: Event | None = None


class CudaDevice(MeasuredScan):
    """A GPU's memory under a ledger of its own, and the search of the lists in it. All devices of this process that are
    open on a GPU share its card."""

    name = "cuda"
    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = "",
        on: str = "cuda",
        streams: Streams | None = None,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            memory: the host's ledger: page-locked buffers, and the memory that the driver takes in this process.
            cap: bytes of the device's memory that may be used, or a size such as `2GB`; if empty, most that is free.
            on: `cuda`, `cuda:1` ..., or `cpu`: torch's CPU device, on which everything can be tried out without a GPU.
            streams: other streams than the device's, for tests.
        """
        self.host = memory
        with memory.charge("cuda driver") as self._driver:
            self.card = open_card(on, cap, streams)
        self.memory = self.card.memory
        self._stand_in = None
        self._staging: UploadBuffers | None = None
        self._lock = threading.Lock()
        self._closed = False
        try:
            if not self.card.on_gpu and self.card.users <= 1:  # that device's memory is the host's
                self._stand_in = memory.reserve("cuda on the cpu", self.memory.limit)
        except BaseException:
            close_card(self.card)
            self._driver.release()
            raise
        self.link = Lane("cuda link", trace=trace)
        self._search = DeviceSearch(self.card)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """A buffer of the device for a list. The caller holds a lease of `memory` for it."""
        self._search.prepare()
        return DeviceBuffer(self.card.allocate(nbytes))

    def write(self, buffer: DeviceBuffer, data: Bytes) -> None:
        """Fills a buffer through page-locked memory. Called from the link's worker, which waits for the transfer, so
        that the link learns how fast it is; a search waits on the device."""
        with self._lock:
            if self._staging is None:
                self._staging = UploadBuffers(self.card, self.host, _STAGING_NBYTES)
            # Kernels that were queued before may still read what the buffer held.
            buffer.filled = self._staging.upload(data, buffer.tensor, self.card.compute.record())
        buffer.filled.wait()

    def pinned(self, nbytes: int) -> Pinned:
        """A page-locked buffer of the host. The caller holds a lease for it."""
        return Pinned(self.card, nbytes)

    def staging(self, nbytes: int) -> UploadBuffers:
        """A ring of page-locked buffers of so many bytes each, under a lease of the host's ledger."""
        return UploadBuffers(self.card, self.host, nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """Gives the memory back. A kernel that still reads it comes first in the only stream that will use it anew."""
        buffer.tensor = buffer.tensor[:0].clone()

    def search(self, request: SearchRequest) -> Candidates:
        """Scans all lists of the request as products of matrices."""
        return self._search.search(request)

    def close(self) -> None:
        """Gives everything back."""
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        if self._staging is not None:
            self._staging.close()
        close_card(self.card)
        self._driver.release()
        if self._stand_in is not None:
            self._stand_in.release()
