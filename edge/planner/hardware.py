"""Devices on which a pipeline may run, and models: published constants, no measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EFFICIENCY = 0.9
"""Share of an accelerator's peak that models reach. Calibrated: of 1.0, 0.9 and 0.7, it fits figure 3.5c best."""


@dataclass(frozen=True, slots=True)
class Model:
    """The size of a transformer.

    Attributes:
        name: stages with the same model name share its weights on a shared device.
        params: number of weights.
        layers, hidden: number of layers, and width of the hidden states.
        kv_nbytes: bytes of one token's KV states; 0 for encoders.
        weight_nbytes: bytes of one weight.
    """

    name: str
    params: float
    layers: int
    hidden: int
    kv_nbytes: int = 0
    weight_nbytes: float = 2.0

    @property
    def nbytes(self) -> float:
        """Bytes of all weights."""
        return self.params * self.weight_nbytes


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator: operations per second, bytes of memory, and bytes per second of its memory and its network.

    Models reach the share `efficiency` of the operations and of the memory bandwidth.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    network: float
    efficiency: float = EFFICIENCY


@dataclass(frozen=True, slots=True)
class Host:
    """A retrieval server.

    Attributes:
        scan_rate: bytes of codes that one core scans per second. A query runs on one core.
        utilisation: share of the memory bandwidth that scanning reaches.
        accelerators: number of accelerators per server.
    """

    name: str = "EPYC Milan"
    cores: int = 96
    memory: float = 384e9
    bandwidth: float = 460e9
    scan_rate: float = 18e9
    utilisation: float = 0.8
    accelerators: int = 4


ACCELERATORS: Mapping[str, Accelerator] = {
    "xpu-a": Accelerator("xpu-a", 197e12, 16e9, 819e9, 200e9),
    "xpu-b": Accelerator("xpu-b", 275e12, 32e9, 1200e9, 300e9),
    "xpu-c": Accelerator("xpu-c", 459e12, 96e9, 2765e9, 600e9),
}
"""Published constants (Jiang's thesis, table 3.2). They resemble TPU v5e, v4 and v5p."""

HOST = Host()
"""Published constants (Jiang's thesis, section 3.4). The scan rate was measured there for ScaNN on an EPYC 7R13."""

MODELS: Mapping[str, Model] = {
    "encoder-120m": Model("encoder-120m", 120e6, 12, 768),
    "llama-1b": Model("llama-1b", 1.24e9, 16, 2048, 32768),
    "llama-8b": Model("llama-8b", 8.0e9, 32, 4096, 131072),
    "llama-70b": Model("llama-70b", 70e9, 80, 8192, 327680),
    "llama-405b": Model("llama-405b", 405e9, 126, 16384, 516096),
}
"""Llama 3 with 16 bits per weight: layers, hidden size, and KV states of 8 heads."""
