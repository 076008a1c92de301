"""A device that finds nothing. The time of a search on it is the core's own overhead."""

from __future__ import annotations

from edge.budget import MemoryBudget
from edge.cache.block_cache import page_buffer
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, SearchRequest
from edge.link import Lane
from edge.trace import Trace


class NullDevice:
    """Holds lists in host memory and takes requests, but scans no rows. Lists are planned, read and transferred as for
    any other device, so that only scanning and rescoring are missing."""

    name = "null"
    in_host_memory = True

    def __init__(self, memory: MemoryBudget, *, trace: Trace | None = None) -> None:
        self.memory = memory
        self.link = Lane.shared(trace=trace)

    def allocate(self, nbytes: int) -> Bytes:
        """A buffer in host memory. The caller holds a lease for it."""
        return page_buffer(nbytes)

    def write(self, buffer: Bytes, data: Bytes) -> None:
        """Copies into a buffer."""
        buffer[: data.size] = data.reshape(-1)

    def free(self, buffer: Bytes) -> None:
        """Does nothing. The system gets the pages back when the last reference is gone."""

    def search(self, request: SearchRequest) -> Candidates:
        """Returns no new candidates."""
        return request.seen

    def close(self) -> None:
        """Closes the link."""
        self.link.close()
