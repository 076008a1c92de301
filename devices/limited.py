"""Another device behind a byte cap and a link of a given bandwidth: the shape of an accelerator, anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edge.budget import MemoryBudget
from edge.devices.base import Device, Estimate
from edge.devices.cpu import CpuDevice
from edge.ivf.base import Bytes, Codec, Vectors
from edge.ivf.dispatcher import Dispatcher
from edge.ivf.tiers import Scan
from edge.lanes import Lane
from edge.trace import Trace


class LimitedDevice:
    """A device whose memory and link are limited; it computes on the device it wraps.

    Its bytes are in the wrapped device's memory, and the cap is held there as one lease.
    """

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int = 64 << 20,
        bandwidth: float = 1e9,
        inner: Device | None = None,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            memory: the ledger of the wrapped device.
            cap: bytes this device holds at most.
            bandwidth: of its link, bytes per second.
            inner: the wrapped device; the host's processor if not given.

        Raises:
            BudgetExceeded: the cap does not fit the wrapped device's memory.
        """
        self.link = Lane("link", trace=trace, bandwidth_limit=bandwidth)
        self._inner: Device = inner or CpuDevice(memory, link=self.link)
        self.name = f"limited {self._inner.name}"
        try:
            self._lease = memory.reserve(self.name, cap)
        except BaseException:
            self.link.close()
            raise
        self.memory = MemoryBudget(cap, part=True)

    def allocate(self, nbytes: int) -> Bytes:
        """A buffer of this device. The caller holds a lease of `memory` for it."""
        return self._inner.allocate(nbytes)

    def search(self, codec: Codec, queries: Vectors, scans: Iterable[Scan], dispatcher: Dispatcher) -> None:
        """Scans on the wrapped device."""
        self._inner.search(codec, queries, scans, dispatcher)

    def layer_kernel(self, spec: Any) -> Any:
        """See the wrapped device.

        Raises:
            CapabilityError: it runs no layers.
        """
        return self._inner.layer_kernel(spec)

    def profile(self, stage: str, load: int) -> Estimate:
        """See the wrapped device.

        Raises:
            CapabilityError: it knows nothing about that stage.
        """
        return self._inner.profile(stage, load)

    def close(self) -> None:
        """Ends its link and gives its memory back."""
        self.link.close()
        self._lease.release()
