"""What the runtimes of all devices share: the place of a model's layers and states, and the way of layers to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.ivf.device import open_device
from edge.link import Lane
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import HiddenDtype, Runtime, Workplace
from edge.streaming.window import Arrival, Way
from edge.trace import Trace

LEAST_CANDIDATES = 64
"""Number of sequences with vectors to read back, in the estimate of the smallest host memory."""

_ALONE = 1 << 50
"""The memory limit of a kernel that is used without an engine, such as in a measurement of single layers."""


def tiles(lengths: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int32]:
    """Parts of sequences, of at most `size` tokens: first token, tokens, and the sequence's first token and its end,
    [n, 4]."""
    own = lengths.astype(np.int64)
    counts = -(-own // size)
    of = np.repeat(np.arange(len(own)), counts)
    ends = np.cumsum(own)
    starts = ends - own
    first = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    parts = np.stack((starts[of] + first, np.minimum(size, own[of] - first), starts[of], ends[of]), axis=1)
    return parts.astype(np.int32)


class DeviceRuntime(Runtime):
    """Runs layers in the memory of the device of the same name. It takes the device's options."""

    places: type[DevicePlace]

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._place: Any = None

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> Workplace:
        self._place = self.places(self._open(budget, trace), lane, trace)
        return self._place  # type: ignore[no-any-return]

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """Returns zero for every chunk: the host computes no layer. `working_nbytes` gives the host's memory."""
        return lambda tokens, longest, prefix: 0

    def _alone(self) -> Any:
        """The device for a kernel that is used without an engine."""
        return self._open(MemoryBudget(_ALONE, part=True), Trace())

    def _open(self, budget: MemoryBudget, trace: Trace) -> Any:
        return open_device(self.name, budget, trace=trace, **self._options)


class DevicePlace(Workplace):
    on_host = False
    ways: type[DeviceWay]

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        """Takes a device, which is closed with this object, and the disk's lane. Its reads go through a second lane, so
        that they do not count as waits of the engine."""
        super().__init__(device.memory, Lane(lane.name, link=device.link.link, trace=trace))
        self.device = device
        self._disk = Lane("weights", link=lane.link)
        self._way: DeviceWay | None = None

    def way(self, model: PackedModel) -> Way:
        largest = max(model.file.nbytes(block) for block in model.layer_blocks)
        self._way = way = self.ways(self.device, self._disk, self.lane, largest)
        return way

    def close(self) -> None:
        """Frees all memory of this place. The window must have been closed before."""
        self._disk.close()
        self.lane.close()
        if self._way is not None:
            self._way.close()
        self.device.close()


class DeviceWay(Way):
    """Two lanes in a row: from the disk into a buffer of the host, and from there to the device."""

    def __init__(self, device: Any, disk: Lane, link: Lane, nbytes: int) -> None:
        """Opens the way for blocks of at most `nbytes`."""
        self._device = device
        self._disk = disk
        self._link = link
        self._nbytes = nbytes

    @abstractmethod
    def fetch(self, source: BlockSource, block: BlockId, into: Any, *, priority: float = 0.0) -> Arrival: ...

    def loss(self, nbytes: int) -> float:
        """The cost of sending the bytes over both lanes again."""
        return self._link.rate.loss(nbytes)

    @abstractmethod
    def close(self) -> None:
        """Frees the host's buffers."""
