"""`WebGpuRuntime`: encoder layers on a GPU, in its memory with a ledger of its own."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from edge.blocks import BlockId, BlockSource
from edge.cache.cached_block import page_buffer
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import HiddenDtype, Pass
from edge.runtimes.device import LEAST_CANDIDATES, DevicePlace, DeviceRuntime, DeviceWay
from edge.runtimes.webgpu.layer import GpuStates, GpuWeights, WebGpuLayerKernel, refusal
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, OffloadedStates
from edge.trace import Trace


class _Block:
    """A buffer of a window. A part of it is the whole: kernels know where its tensors begin."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getitem__(self, part: slice) -> _Block:
        return self


class GpuWay(DeviceWay):
    """The GPU's queue writes a buffer after the kernels that were put into it before."""

    def __init__(self, device: Any, disk: Lane, link: Lane, nbytes: int) -> None:
        super().__init__(device, disk, link, nbytes)
        self._lease = device.host.reserve("weights on their way", nbytes)
        self._staged = page_buffer(nbytes)

    def allocate(self, nbytes: int) -> _Block:
        return _Block(self._device.card.buffer(nbytes))

    def free(self, buffer: _Block) -> None:
        self._device.card.destroy(buffer.buffer)

    def fetch(self, source: BlockSource, block: BlockId, into: _Block, *, priority: float = 0.0) -> Ticket:
        nbytes = source.nbytes(block)

        def move() -> int:
            self._disk.fetch(source, block, self._staged.data, priority=priority).wait()
            self._device.card.write(into.buffer, 0, self._staged[:nbytes])
            return nbytes

        return self._link.submit(str(block), move, nbytes, priority=priority)

    def close(self) -> None:
        self._staged = np.empty(0, np.uint8)
        self._lease.release()


class WebGpuPlace(DevicePlace):
    """The memory of a GPU (`edge.devices.webgpu.device.WebGpuDevice`), as the workplace of one model."""

    ways = GpuWay

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        super().__init__(device, lane, trace)
        self.kernels: list[WebGpuLayerKernel] = []

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
        for kernel in self.kernels:
            kernel.release()


class WebGpuRuntime(DeviceRuntime):
    """Runs layers of BERT and XLM-R. The options are those of the device `webgpu`."""

    name = "webgpu"
    places = WebGpuPlace
    libraries = ("wgpu",)
    compiled_nbytes = 96 << 20

    def working_nbytes(self, one: PassSizes) -> int:
        """Bytes of host memory: a layer on its way, layer 0's input of the longest sequence, and vectors."""
        return one.layer_nbytes + 3 * 4 * one.longest * one.width + 8 * LEAST_CANDIDATES * one.width + SLACK

    def refusal(self, spec: LayerSpec) -> str | None:
        return refusal(spec)

    def layer_kernel(
        self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32"
    ) -> WebGpuLayerKernel:
        if self._place is not None:
            kernel = WebGpuLayerKernel(spec, hidden_dtype, self._place.device)
            self._place.kernels.append(kernel)
            return kernel
        device = self._alone()
        try:
            kernel = WebGpuLayerKernel(spec, hidden_dtype, device)
        except BaseException:
            device.close()
            raise
        weakref.finalize(kernel, _end, device, kernel.buffers)
        return kernel


def _end(device: Any, buffers: dict[str, Any]) -> None:
    for buffer in buffers.values():
        device.card.destroy(buffer)
    device.close()
