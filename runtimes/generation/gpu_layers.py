"""`GpuLayers`: the layers of a language model that lie on the GPU of the device `cuda`, under its ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import open_device
from edge.models.gguf_file import GGUFFile
from edge.plugins import parse_device

AUTO = "auto"
_DEVICE = "cuda"
"""The device whose GPU llama.cpp can use as well."""


@dataclass(slots=True)
class GpuLayers:
    """What is asked: `auto` takes as many layers as fit into the free memory of the device, and none without one."""

    asked: str
    device: str
    count: int = 0
    _opened: Any = None
    _lease: Lease | None = field(default=None, repr=False)

    def reserve(self, api: Any, file: GGUFFile, budget: MemoryBudget, beside: int) -> None:
        """Chooses the layers and leases their bytes from the ledger of the device: their part of the weights and of
        `beside`, the bytes of keys, values and buffers. The host's leases stay, since they cover the loading.

        Raises:
            ConfigError: a number is asked for, but there is no such device, or the model has fewer layers.
            CapabilityError: a number is asked for, and this llama.cpp was built without a GPU.
            BudgetExceeded: the layers do not fit into the memory of the device.
        """
        wanted = 0 if self.asked == AUTO else int(self.asked)
        if self.asked != AUTO and not wanted:
            return
        can = bool(api.llama_supports_gpu_offload())
        here = parse_device(self.device)[0] == _DEVICE
        if self.asked == AUTO and not (can and here):
            return
        if not can:
            raise CapabilityError(
                f"{wanted} layers of {file.path.name} cannot lie on a GPU, because this llama.cpp was built without "
                f"one; install llama-cpp-python for your GPU, or set gpu_layers to {AUTO}"
            )
        if not here:
            raise ConfigError(f"layers of {file.path.name} on a GPU need its memory limit: --device {_DEVICE}")
        layers = int(file.value("block_count")) + 1  # llama.cpp counts the output as one
        if wanted > layers:
            raise ConfigError(f"{file.path.name} has {layers} layers with its output, fewer than {wanted}")
        self._opened = open_device(self.device, budget)
        each = -(-(file.weights_nbytes + beside) // layers)
        ledger = self._opened.memory
        self.count = wanted or min(layers, ledger.free // each)
        self._lease = ledger.reserve(f"{self.count} layers of {file.path.name}", self.count * each)

    @property
    def placement(self) -> str:
        """What lies there, for people; empty if nothing does."""
        return (
            f"{self.count} layers on the GPU, {format_size(self._lease.nbytes)}" if self._lease and self.count else ""
        )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
