"""`cuda`: a GPU as a place for lists and layers, and the search of the lists there (`IntervalSearch`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.budget import Lease, MemoryBudget
from edge.devices.compiling import Compiling
from edge.devices.cpu import MeasuredScan
from edge.devices.cuda.card import Card, Pinned, Streams, UploadBuffers, close_card, open_card
from edge.devices.cuda.scanning import IntervalSearch
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, Event, SearchRequest
from edge.link import Lane
from edge.trace import Trace

_JOINED_NBYTES = 8 << 20
"""Bytes of lists that cross the link together, at most. A list of 256 rows has about 100 kB."""


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Bytes on the device, and the transfer that wrote them last."""

    tensor: Any
    filled: Event | None = None


class CudaDevice(MeasuredScan):
    """A GPU's memory under a ledger of its own, and the search of its lists. All devices on a GPU share its card."""

    name = "cuda"
    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = "",
        on: str = "cuda",
        compute: str = "",
        int8: str = "",
        streams: Streams | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`memory` is the host's ledger of page-locked buffers and the driver's memory; `cap`, `on`: see
        `open_card`. `compute` and `int8` are for layers of models (`CudaRuntime`)."""
        self.host = memory
        with memory.charge("cuda driver") as self._driver:
            self.card = open_card(on, cap, streams)
        self.memory = self.card.memory
        self.hardware = f"{self.card.name}, with {'our kernels in Triton' if self.card.has_triton else 'torch alone'}"
        self._stand_in = None
        self.most = min(_JOINED_NBYTES, memory.limit // 64, self.memory.limit // 16)
        self._staging: UploadBuffers | None = None
        self._landing: tuple[Any, Lease] | None = None
        self._lock = threading.RLock()
        self._closed = False
        try:
            if not self.card.on_gpu and self.card.users <= 1:  # that device's memory is the host's
                self._stand_in = memory.reserve("cuda on the cpu", self.memory.limit)
        except BaseException:
            close_card(self.card)
            self._driver.release()
            raise
        self.compiling = Compiling(memory, "cuda kernels")
        self.link = Lane("cuda link", trace=trace)
        self._search = DeviceSearch(self.card, memory, self.compiling)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """The first one takes the memory of searches and transfers, before lists take all there is."""
        self._search.prepare()
        with self._lock:
            if self._landing is None:
                lease = self.memory.reserve("list staging", self.most)
                self._landing = self.card.allocate(self.most), lease
        return DeviceBuffer(self.card.allocate(nbytes))

    def write(self, buffer: DeviceBuffer, data: Bytes) -> None:
        """Fills a buffer through page-locked memory, and waits, so that the link learns its speed."""
        with self._lock:
            # Kernels that were queued before may still read what the buffer held.
            buffer.filled = self._staged().upload(data, buffer.tensor, self.card.compute.record())
        buffer.filled.wait()

    def write_joined(self, nbytes: int, fill: Callable[[Bytes], Sequence[tuple[DeviceBuffer, Bytes]]]) -> None:
        """One copy over the link, and one on the device into all buffers."""
        card, staging = self.card, self._staged()
        with self._lock, staging.lock:
            assert self._landing is not None
            number, pinned = staging.next()
            filled, landing, start = fill(pinned.array[:nbytes]), self._landing[0], pinned.array.ctypes.data
            staging.send(number, nbytes, landing)
            into = [buffer.tensor[: codes.nbytes] for buffer, codes in filled]  # of none that is given up meanwhile
            starts = [codes.ctypes.data - start for _, codes in filled]
            given = [landing[at : at + len(own)] for at, own in zip(starts, into, strict=True)]
            card.inward.wait(card.compute.record())
            card.inward.run(lambda: card.torch._foreach_copy_(into, given))
            arrived = card.inward.record()
        for buffer, _ in filled:
            buffer.filled = arrived
        arrived.wait()

    def pinned(self, nbytes: int) -> Pinned:
        return Pinned(self.card, nbytes)

    def staging(self, nbytes: int) -> UploadBuffers:
        """A ring of page-locked buffers of so many bytes each, under a lease of the host's ledger."""
        return UploadBuffers(self.card, self.host, nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """Gives the memory back. A kernel that still reads it comes first in the only stream that will use it anew."""
        buffer.tensor = buffer.tensor[:0].clone()

    def search(self, request: SearchRequest) -> Candidates:
        return self._search.search(request)

    def _staged(self) -> UploadBuffers:
        with self._lock:
            if self._staging is None:
                self._staging = UploadBuffers(self.card, self.host, self.most)
            return self._staging

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        if self._staging is not None:
            self._staging.close()
        if self._landing is not None:
            self._landing[1].release()
            self._landing = None
        close_card(self.card)
        self.compiling.close()
        self._driver.release()
        if self._stand_in is not None:
            self._stand_in.release()


_WORKING_NBYTES = 256 << 20
"""Bytes that a search works with, at most."""

_WORKING_SHARE = 8
"""And at most such a part (1/8) of the device's memory."""


class DeviceSearch:
    """Searches on one card. Threads take turns."""

    def __init__(self, card: Card, host: MemoryBudget, compiling: Compiling) -> None:
        self._card = card
        self._compiling = compiling
        self._intervals = IntervalSearch(card, host)
        self._lock = threading.Lock()
        self._lease: Lease | None = None

    def prepare(self) -> None:
        if self._lease is None:
            memory = self._card.memory
            self._lease = memory.reserve("search", min(_WORKING_NBYTES, memory.limit // _WORKING_SHARE))

    def search(self, request: SearchRequest) -> Candidates:
        if not request.lists:
            return request.seen
        with self._lock:
            self.prepare()
            for scan in request.lists:
                if scan.codes.filled is not None:
                    self._card.compute.wait(scan.codes.filled)
            assert self._lease is not None
            with self._compiling(request.codec.spec.name):
                self._intervals.search(request, self._lease)
        return request.seen

    def close(self) -> None:
        with self._lock:
            if self._lease is not None:
                self._lease.release()
                self._lease = None
            self._intervals.close()
