"""`WebGpuRuntime`: encoder layers on a GPU, in its memory with a ledger of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.cache.cached_block import page_buffer
from edge.ivf.device import open_device
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import DevicePlace, HiddenDtype, Pass, Runtime
from edge.runtimes.webgpu.layer import GpuStates, GpuWeights, WebGpuLayerKernel, refusal
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, OffloadedStates
from edge.streaming.window import Way
from edge.trace import Trace

_ALONE = 1 << 50
"""The memory limit of a kernel that is used without an engine, such as in a measurement of single layers."""

_LEAST_CANDIDATES = 64
"""Number of sequences with vectors to read back, in the estimate of the smallest host memory."""


class WebGpuRuntime(Runtime):
    """Runs layers of BERT and XLM-R. The options are those of the device `webgpu`."""

    name = "webgpu"
    libraries = ("wgpu",)
    compiled_nbytes = 96 << 20

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._place: WebGpuPlace | None = None

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> WebGpuPlace:
        self._place = WebGpuPlace(self._open(budget, trace), lane, trace)
        return self._place

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """Returns zero for every chunk: the host computes no layer. `working_nbytes` gives the host's memory."""
        return lambda tokens, longest, prefix: 0

    def working_nbytes(self, one: PassSizes) -> int:
        """Bytes of host memory: a layer on its way, layer 0's input of the longest sequence, and vectors."""
        return one.layer_nbytes + 3 * 4 * one.longest * one.width + 8 * _LEAST_CANDIDATES * one.width + SLACK

    def refusal(self, spec: LayerSpec) -> str | None:
        return refusal(spec)

    def layer_kernel(
        self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32"
    ) -> WebGpuLayerKernel:
        if self._place is not None:
            return self._place.kernel(WebGpuLayerKernel(spec, hidden_dtype, self._place.device))
        device = self._open(MemoryBudget(_ALONE, part=True), Trace())
        try:
            kernel = WebGpuLayerKernel(spec, hidden_dtype, device)
        except BaseException:
            device.close()
            raise
        weakref.finalize(kernel, _end, device, kernel.buffers)
        return kernel

    def _open(self, budget: MemoryBudget, trace: Trace) -> Any:
        return open_device(self.name, budget, trace=trace, **self._options)


def _end(device: Any, buffers: dict[str, Any]) -> None:
    """Frees what a kernel without an engine has held."""
    for buffer in buffers.values():
        device.card.destroy(buffer)
    device.close()


class WebGpuPlace(DevicePlace):
    """The memory of a GPU (`edge.devices.webgpu.device.WebGpuDevice`), as the workplace of one model."""

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        super().__init__(device, lane, trace)
        self._kernels: list[WebGpuLayerKernel] = []

    def kernel(self, made: WebGpuLayerKernel) -> WebGpuLayerKernel:
        """Notes a kernel that computes here, and returns it."""
        self._kernels.append(made)
        return made

    def way(self, model: PackedModel) -> Way:
        """Layers are read from the disk into host memory, and sent to the GPU from there."""
        largest = max(model.file.nbytes(block) for block in model.layer_blocks)
        self._way = way = GpuWay(self.device, self._disk, self.lane, largest)
        return way

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> Any:
        """The places of the tensors in a buffer of the GPU."""
        places = model.places[model.layer_blocks[layer]]
        return GpuWeights(buffer.buffer, {name: part.start for name, part, _, _ in places})

    def states(self, run: Pass) -> HiddenStates:
        """The states are on the GPU, or in a file of the host if they do not fit there."""
        tokens = min(int(run.batch.lengths.sum()), run.longest_chunk)
        if run.memory_plan.resident:
            return GpuStates(run.shape, self.device, tokens, self._release)
        return OffloadedStates(run.shape, self.device.host, self._disk, run.scratch, run.longest_chunk)

    def close(self) -> None:
        self._release()
        super().close()

    def _release(self) -> None:
        for kernel in self._kernels:
            kernel.release()


class _Block:
    """A buffer of a window. A part of it is the whole: kernels know where its tensors begin."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getitem__(self, part: slice) -> _Block:
        return self


class GpuWay:
    """Two lanes in a row: from the disk into a buffer of the host, and from there to the GPU, whose queue writes a
    buffer after the kernels that were put into it before."""

    def __init__(self, device: Any, disk: Lane, link: Lane, nbytes: int) -> None:
        """Opens the way for blocks of at most `nbytes`."""
        self._device = device
        self._disk = disk
        self._link = link
        self._lease = device.host.reserve("weights on their way", nbytes)
        self._staged = page_buffer(nbytes)

    def allocate(self, nbytes: int) -> _Block:
        """A buffer on the GPU."""
        return _Block(self._device.card.buffer(nbytes))

    def free(self, buffer: _Block) -> None:
        """Frees it. Kernels that were put into the queue before still read it."""
        self._device.card.destroy(buffer.buffer)

    def fetch(self, source: BlockSource, block: BlockId, into: _Block, *, priority: float = 0.0) -> Ticket:
        """Requests a block."""
        nbytes = source.nbytes(block)

        def move() -> int:
            self._disk.fetch(source, block, self._staged.data, priority=priority).wait()
            self._device.card.write(into.buffer, 0, self._staged[:nbytes])
            return nbytes

        return self._link.submit(str(block), move, nbytes, priority=priority)

    def loss(self, nbytes: int) -> float:
        """The cost of sending the bytes over both lanes again."""
        return self._link.rate.loss(nbytes)

    def close(self) -> None:
        """Frees the host's buffer."""
        self._staged = np.empty(0, np.uint8)
        self._lease.release()
