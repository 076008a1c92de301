"""`Device`: where bytes live and vectors are searched. A device is one file with one class, found through the
entry-point group `edge.devices`; what it cannot do it refuses with a `CapabilityError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from edge.budget import MemoryBudget
from edge.ivf.tiers import ListDevice
from edge.plugins import load
from edge.trace import Trace

GROUP = "edge.devices"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage costs on a device under some load.

    Attributes:
        latency: seconds until one request is done.
        throughput: requests per second.
        nbytes: memory of the device it takes.
        modelled: it comes from a model of the device and was not measured.
    """

    latency: float
    throughput: float
    nbytes: int
    modelled: bool = False


class Device(ListDevice, Protocol):
    """What the core schedules.

    Attributes:
        name: for messages and traces.
        memory: this device's own ledger. Who holds a buffer of the device holds a lease of it.
        link: how bytes reach the device.
    """

    def layer_kernel(self, spec: Any) -> Any:
        """A compiled layer of a model.

        Raises:
            CapabilityError: this device runs no layers.
        """

    def profile(self, stage: str, load: int) -> Estimate:
        """What `stage` costs with `load` requests at a time.

        Raises:
            CapabilityError: this device knows nothing about that stage.
        """


def open_device(name: str, memory: MemoryBudget, *, trace: Trace | None = None, **options: Any) -> Device:
    """Opens an installed device by name; `options` are its own.

    Raises:
        CapabilityError: there is no such device; the message names those there are.
    """
    device: Device = load(GROUP, name)(memory, trace=trace, **options)
    return device
