"""`webgpu`: a GPU as a place for lists, through Vulkan, Metal or DirectX 12."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.devices.cpu import MeasuredScan
from edge.devices.webgpu.card import ListBuffer, SharedGpu, Slabs
from edge.devices.webgpu.search import GpuSearch
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, SearchRequest
from edge.link import Lane
from edge.trace import Trace


class WebGpuDevice(MeasuredScan):
    """A GPU's memory under a ledger of its own, and the search of the lists in it.

    Attributes:
        card: the GPU, which all devices of this process that are open on it share.
        host: the process's ledger.
        compiling: see `SharedGpu`.
        shared: whether lists on it are of benefit only if it scans faster than the host.
        hardware: the name and the kind of the GPU, for people.
    """

    name = "webgpu"
    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = "",
        on: str = "",
        always: bool | str = False,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            memory: the host's ledger. It covers what the library and the driver take in this process, and the cap as
                well if the GPU has the host's memory.
            cap: bytes of the GPU's memory that may be used, or a size such as `2GB`; if empty, 64 MB of a GPU that has
                the host's memory, and 1 GB of another.
            on: a part of the GPU's name; if empty, the best one.
            always: keeps a GPU in use that has the host's memory and is slower than the host, for tests.
        """
        self._hold = SharedGpu(memory, on, cap)
        self.card = self._hold.card
        self.host = memory
        self.compiling = self._hold.compiling
        self.hardware = self.card.hardware
        self.memory = self.card.memory
        self.shared = self.card.shared and not always
        self.link = Lane("webgpu link", trace=trace)
        self._search = GpuSearch(self._hold)
        self._slabs = Slabs(self.card, self._search.scratch)
        self.card.makes_room = self._slabs.shrink
        self._closed = False

    def allocate(self, nbytes: int) -> ListBuffer:
        self._search.prepare()
        with self.card.lock:
            idle = self._search.turn.acquire(blocking=False)
            try:
                return self._slabs.allocate(nbytes, kept=self._search.kept, move=idle)
            finally:
                if idle:
                    self._search.turn.release()

    def write(self, buffer: ListBuffer, data: Bytes) -> None:
        """Sends bytes and waits until they have arrived, so that the link learns how fast it is."""
        with self.card.lock:
            self.card.write(buffer.slab.buffer, buffer.offset, data)
        self.card.synchronize()

    def download(self, buffer: Any, nbytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a buffer of the card, after everything that was submitted."""
        with self.host.reserve("webgpu results", 2 * nbytes):
            landing = self.card.landing(nbytes)
            with self.card.lock, self.card.answering():
                encoder = self.card.device.create_command_encoder()
                encoder.copy_buffer_to_buffer(buffer, 0, landing, 0, nbytes)
                self.card.device.queue.submit([encoder.finish()])
            found = self.card.read(landing, nbytes)
            landing.destroy()
        return found

    def free(self, buffer: ListBuffer) -> None:
        """Gives the room back. Commands that read it were submitted before those that will write to it anew."""
        self._slabs.free(buffer)

    def search(self, request: SearchRequest) -> Candidates:
        """Scans all lists of the request, for eight queries at a time."""
        return self._search.search(request)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        with self.card.lock:
            self._slabs.close()
        self._hold.close()
