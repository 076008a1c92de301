"""`Tier`: a device with the list parts that are resident on it, and the transfers that bring them there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease
from edge.cache.buffers import page_buffer
from edge.cache.eviction import Policy
from edge.cache.residency import Fetch, Residency
from edge.errors import DeviceLost, PartLost
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, Bytes, Ids, ListPart
from edge.ivf.device import SearchPlace
from edge.link import Ticket
from edge.trace import Trace

Unpacked = tuple[Ids, Any, npt.NDArray[np.uint32]]
"""Ids [rows], codes in the device's buffer, and checksums of the float32 rows [rows]."""


class Remote:
    """The buffer of one part on a device outside this process's memory.

    The device holds only the codes. The part's ids and checksums stay in host memory.
    """

    def __init__(self, tier: Tier, nbytes: int) -> None:
        self.nbytes = nbytes
        self.kept: Unpacked | None = None
        self._tier = tier
        self._codes = tier.device.allocate(nbytes)
        self._lease: Lease | None = None

    def fill(self, part: ListPart, block: Bytes) -> int:
        """Sends the codes of a block to the device; returns the number of bytes transferred."""
        ids, codes, checksums = part.split(block)
        self._tier.device.write(self._codes, codes)
        self.kept = ids.copy(), self._codes, checksums.copy()
        return codes.nbytes

    def hold(self, lease: Lease) -> None:
        """Keeps the lease of the ids and checksums in host memory as long as the buffer."""
        self._lease = lease

    def __del__(self) -> None:
        if hasattr(self, "_codes"):
            self._tier.device.free(self._codes)
        if getattr(self, "_lease", None) is not None:
            self._lease.release()  # type: ignore[union-attr]


class Tier:
    """A device and the list parts that are resident on it.

    Attributes:
        fills: whether searches put cold parts here; otherwise only lookahead does.
        lost: whether the device has stopped answering.
    """

    def __init__(
        self,
        device: SearchPlace,
        *,
        policy: Policy | None = None,
        capacity: int | None = None,
        share: float = 1.0,
        trace: Trace | None = None,
        name: str = "lists",
        behind: Tier | None = None,
        fills: bool = False,
    ) -> None:
        """
        Args:
            policy, capacity, name: see `Residency`.
            share: after a search, cached lists keep at most this share of the room (see `Residency.trim`).
            behind: the host's tier. A part that it holds is copied from there instead of being read from the file.
        """
        self.device = device
        self.share = share
        self.fills = fills
        self.lost = False
        self._emptied = False
        self._behind = behind
        self.residency = Residency(
            device.memory, policy=policy, capacity=capacity, allocate=self._allocate, name=name,
            rate=device.link.rate, trace=trace,
        )  # fmt: skip

    def fetch(self, part: ListPart) -> Fetch:
        """Starts the transfer of a part that is needed now."""

        def start(buffer: Any) -> Ticket:
            if isinstance(buffer, Remote):
                return self._send(part, buffer)
            if self._behind is None:
                return self.device.link.fetch(part.source, part.codes, buffer.data)
            return self.device.link.submit(str(part.codes), lambda: self.read(part, buffer), part.nbytes)

        return start

    def read(self, part: ListPart, buffer: Any) -> int:
        """Fills a buffer in the calling thread, from the host's memory if the part is there.

        For lookahead, which submits to its lane itself.

        Returns:
            Number of bytes that came to the device.

        Raises:
            CorruptBlock, StorageError: the part cannot be read.
            DeviceLost: the device does not answer.
        """
        block = buffer if not isinstance(buffer, Remote) else page_buffer(part.nbytes)
        held = None if self._behind is None else self._behind.residency.held(part.key)
        if held is None:
            part.source.read(part.codes, block.data)
        else:
            with held:
                block[: part.nbytes] = held.wait()[: part.nbytes]
        if isinstance(buffer, Remote):
            return buffer.fill(part, block)
        return part.nbytes

    def unpack(self, part: ListPart, buffer: Any) -> Unpacked:
        """The ids, codes and checksums of a part that has arrived."""
        if isinstance(buffer, Remote):
            assert buffer.kept is not None
            return buffer.kept
        return part.split(buffer)

    def fail(self, error: DeviceLost) -> None:
        """Notes that the device has failed: for good, or with its present content, so that it is filled anew."""
        if isinstance(error, PartLost):
            self._emptied = True
        else:
            self.lost = True

    def end_round(self) -> None:
        """Ends a search: cached lists shrink to this tier's share, or to nothing if the device has failed."""
        nothing, self._emptied = self.lost or self._emptied, False
        if nothing or self.share < 1:
            self.residency.trim(0.0 if nothing else self.share)

    def close(self) -> None:
        """Releases all memory."""
        self.residency.close()

    def _allocate(self, nbytes: int) -> Any:
        return self.device.allocate(nbytes) if self.device.in_host_memory else Remote(self, nbytes)

    def _send(self, part: ListPart, buffer: Remote) -> Ticket:
        """Reads a part into a buffer in host memory, and sends it to the device over the device's own link."""
        assert self._behind is not None
        host = self._behind.device
        kept = part.rows * (ID_NBYTES + CHECKSUM_NBYTES)
        buffer.hold(host.memory.reserve("ids of lists", kept))
        staged: list[Bytes] = []
        lease = host.memory.reserve("list staging", part.nbytes)

        def read() -> int:
            staged.append(page_buffer(part.nbytes))
            part.source.read(part.codes, staged[0].data)
            return part.nbytes

        def send() -> int:
            return buffer.fill(part, staged[0])

        def release() -> None:
            staged.clear()
            lease.release()

        first = host.link.submit(str(part.codes), read, part.nbytes)
        last = self.device.link.submit(str(part.codes), send, part.nbytes, after=first)
        last.when_done(release)
        return last
