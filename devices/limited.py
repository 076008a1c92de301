"""Another device behind a byte cap and a link of a given bandwidth and latency: the shape of an accelerator."""

from __future__ import annotations

from typing import Any

from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.cpu import CpuDevice
from edge.errors import BudgetExceeded, CapabilityError, ConfigError
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, Estimate, Profile, SearchPlace, SearchRequest
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
        cap: int | str = 64 << 20,
        bandwidth: float | str = 1e9,
        latency: float | str = 0.0,
        inner: SearchPlace | None = None,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            memory: the ledger of the wrapped device.
            cap: bytes this device holds at most, or a size such as `64MB`.
            bandwidth: of its link, bytes per second, or a size such as `1GB`.
            latency: of its link, seconds for each transfer.
            inner: the wrapped device, which stays the caller's; the host's processor if not given.

        Raises:
            BudgetExceeded: the cap does not fit the wrapped device's memory.
            ConfigError: an option is no number.
        """
        cap = parse_size(cap)
        try:
            bandwidth = float(parse_size(bandwidth)) if isinstance(bandwidth, str) else bandwidth
            latency = float(latency)
        except ValueError:
            raise ConfigError(f"the latency of a limited device is a number of seconds, not {latency!r}") from None
        if bandwidth <= 0 or latency < 0:
            raise ConfigError(f"a link has a bandwidth above 0 and no negative latency, not {bandwidth} and {latency}")
        self._inner: SearchPlace = inner or CpuDevice(memory)
        self._own = inner is None
        self.name = f"limited {self._inner.name}"
        self.in_host_memory = self._inner.in_host_memory
        try:
            self._lease = memory.reserve(self.name, cap)
        except BudgetExceeded:
            if self._own:
                self._inner.close()
            raise
        self.link = Lane("link", trace=trace, bandwidth_limit=bandwidth, latency=latency)
        self.memory = MemoryBudget(cap, part=True)

    def allocate(self, nbytes: int) -> Any:
        """A buffer of this device. The caller holds a lease of `memory` for it."""
        return self._inner.allocate(nbytes)

    def write(self, buffer: Any, data: Bytes) -> None:
        """Fills a buffer; called from the link's worker, which takes the time that the link needs."""
        self._inner.write(buffer, data)

    def free(self, buffer: Any) -> None:
        """Takes a buffer back."""
        self._inner.free(buffer)

    def search(self, request: SearchRequest) -> Candidates:
        """Scans on the wrapped device."""
        return self._inner.search(request)

    def profile(self, stage: str, load: int) -> Estimate:
        """See the wrapped device.

        Raises:
            CapabilityError: it knows nothing about that stage.
        """
        if not isinstance(self._inner, Profile):
            raise CapabilityError(f"device {self._inner.name} has no profile")
        return self._inner.profile(stage, load)

    def close(self) -> None:
        """Closes its link, gives its memory back, and closes the wrapped device if it opened it."""
        self.link.close()
        self._lease.release()
        if self._own:
            self._inner.close()
