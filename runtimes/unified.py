"""Weights in memory that the host and the GPU share. They are read from the disk into it, and nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.lanes import Lane
from edge.link import Ticket
from edge.models.packed import PackedModel
from edge.runtimes.workplace import HostPlace
from edge.streaming.window import Way


class Shared:
    """A buffer, or a part of a buffer, that numpy and mlx access in place.

    Attributes:
        array: its bytes for mlx.
        view: the same bytes for numpy, which may write to them.
    """

    def __init__(self, array: Any, view: npt.NDArray[np.uint8]) -> None:
        self.array = array
        self.view = view

    def __getitem__(self, part: slice) -> Shared:
        return Shared(self.array[part], self.view[part])


class SharedWay:
    """Reads blocks from the disk into buffers of mlx."""

    def __init__(self, mx: Any, lane: Lane) -> None:
        self._mx = mx
        self._lane = lane

    def allocate(self, nbytes: int) -> Shared:
        """A new buffer of `nbytes` bytes."""
        array = self._mx.zeros(nbytes, dtype=self._mx.uint8)
        self._mx.eval(array)
        return Shared(array, np.array(array, copy=False))

    def free(self, buffer: Shared) -> None:
        """Does nothing. The memory is freed with the last reference to it."""

    def fetch(self, source: BlockSource, block: BlockId, into: Shared, *, priority: float = 0.0) -> Ticket:
        """Requests a block from the lane. No kernel reads the buffer any more, because `run` waits for its result."""
        return self._lane.fetch(source, block, into.view.data, priority=priority)

    def loss(self, nbytes: int) -> float:
        """Seconds per byte to read the bytes again."""
        return self._lane.rate.loss(nbytes)


class UnifiedPlace(HostPlace):
    """The memory of this process, which the GPU reads directly. One budget covers both."""

    def __init__(self, memory: MemoryBudget, lane: Lane, mx: Any) -> None:
        super().__init__(memory, lane)
        self._mx = mx

    def way(self, model: PackedModel) -> Way:
        """Layers are read from the disk into buffers of mlx."""
        return SharedWay(self._mx, self.lane)

    def tensors(self, model: PackedModel, layer: int, buffer: Shared) -> dict[str, Any]:
        """mlx's views of a layer's tensors."""
        views: dict[str, Any] = {}
        start = 0
        for tensor in model.spec.layer.tensors():
            part = buffer.array[start : start + tensor.nbytes]
            views[tensor.name] = part.view(getattr(self._mx, tensor.dtype)).reshape(tensor.shape)
            start += tensor.nbytes
        return views
