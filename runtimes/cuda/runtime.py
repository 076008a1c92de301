"""`CudaRuntime`: layers on a GPU, in device memory with a separate budget."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Event, Stream
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import HiddenDtype, Pass
from edge.runtimes.cuda.layer import CudaLayerKernel
from edge.runtimes.cuda.states import DeviceRows, DeviceStates, Entrance, HostStates, KeptPages, Readback
from edge.runtimes.device import LEAST_CANDIDATES, DevicePlace, DeviceRuntime, DeviceWay
from edge.runtimes.input import Feed
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, TokenChunk
from edge.streaming.window import Arrival
from edge.trace import Trace

_COMPUTE = ("", "float16", "bfloat16", "float32")

_ROWS_STAGING = 4 << 20
"""Bytes of each of the two page-locked buffers through which token rows are transferred."""


class CudaWay(DeviceWay):
    """Goes through one of two page-locked buffers. The requesting thread waits only until the transfer is in the inward
    stream, which waits for kernels that use the buffer; the compute stream waits for it."""

    _staging: Any = None

    def allocate(self, nbytes: int) -> Any:
        return self._device.card.allocate(nbytes)

    def free(self, buffer: Any) -> None:
        """Waits until no kernel uses the buffer, because the allocator may reuse its memory at once."""
        self._device.card.synchronize()

    def fetch(self, source: BlockSource, block: BlockId, into: Any, *, priority: float = 0.0) -> Arrival:
        if self._staging is None:
            self._staging = self._device.staging(self._nbytes)
        staging, nbytes, used = self._staging, source.nbytes(block), self._device.card.compute.record()
        arrived: list[Event] = []

        def move() -> int:
            with staging.lock:
                number, buffer = staging.next()
                self._disk.fetch(source, block, buffer.array.data, priority=priority).wait()
                arrived.append(staging.send(number, nbytes, into, used))
            return nbytes

        ticket = self._link.submit(str(block), move, nbytes, priority=priority)
        return _DeviceArrival(ticket, arrived, self._device.card.compute)

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()
            self._staging = None


class _DeviceArrival:
    def __init__(self, ticket: Ticket, arrived: list[Event], compute: Stream) -> None:
        self._ticket = ticket
        self._arrived = arrived
        self._compute = compute

    @property
    def failed(self) -> bool:
        return self._ticket.failed

    def wait(self) -> None:
        self._ticket.wait()
        self._compute.wait(self._arrived[0])

    def settle(self) -> None:
        """Waits until the transfer is in the inward stream, which runs it before the next one into the same buffer."""
        self._ticket.settle()


class CudaPlace(DevicePlace):
    ways = CudaWay

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        super().__init__(device, lane, trace)
        self._rows_staging: Any = None
        self._pages = KeptPages(device)

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> dict[str, Any]:
        torch, places = self.device.card.torch, model.places[model.layer_blocks[layer]]
        kinds = {dtype: getattr(torch, dtype.name) for _, _, dtype, _ in places}
        return {name: buffer[part].view(kinds[dtype]).view(shape) for name, part, dtype, shape in places}

    def states(self, run: Pass) -> HiddenStates:
        """The states are on the device, or in page-locked memory of the host."""
        device, shape = self.device, run.shape
        tokens = min(int(run.batch.lengths.sum()), run.longest_chunk)
        if self._rows_staging is None:
            self._rows_staging = device.staging(_ROWS_STAGING)
        entrance = Entrance(device, self._rows_staging, run.model, run.embedding, tokens, run.longest)
        try:
            readback = Readback(device, device.host, len(run.batch), shape.width)
        except BaseException:
            entrance.close()
            raise
        try:
            if run.memory_plan.resident:
                return DeviceStates(shape, device, tokens, entrance, readback)
            return HostStates(shape, device, tokens, entrance, readback, self._pages)
        except BaseException:
            entrance.close()
            readback.close()
            raise

    def embed(self, feed: Feed, states: HiddenStates) -> Callable[[TokenChunk], Any]:
        return feed.raw

    def beside(self, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Token rows, and computing layer 0's input of them."""
        return Entrance.memory_needed(model, chunk_tokens, longest) + Entrance.workspace(model, chunk_tokens)

    def prefix(self, states: npt.NDArray[Any]) -> DeviceRows:
        """Sends the prefix's input to the device, where its states stay."""
        return DeviceRows.of(states, self.device.card)

    def close(self) -> None:
        self.device.card.synchronize()
        if self._rows_staging is not None:
            self._rows_staging.close()
        self._pages.close()
        super().close()


class CudaRuntime(DeviceRuntime):
    """Runs every `LayerSpec` with torch on a GPU. The options are those of the device `cuda`, and `compute`."""

    name = "cuda"
    places = CudaPlace
    libraries = ("torch",)
    compiled_nbytes = 1 << 20

    def __init__(self, *, compute: str = "", **options: Any) -> None:
        if compute not in _COMPUTE:
            raise ConfigError(f"products are computed in float16, bfloat16 or float32, not {compute!r}")
        super().__init__(**options)
        self._compute = compute

    def working_nbytes(self, one: PassSizes) -> int:
        """Bytes of host memory: page-locked buffers for two layers, rows and vectors, and a prefix."""
        staging = 2 * one.layer_nbytes + 2 * _ROWS_STAGING
        return staging + Readback.memory_needed(LEAST_CANDIDATES, one.width) + 3 * 4 * one.longest * one.width + SLACK

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> CudaLayerKernel:
        for kind, has in (
            ("biases of distances", spec.by_distance), ("local attention", spec.window),
            ("norms after a part", spec.post_norms),
        ):  # fmt: skip
            if has:
                raise CapabilityError(f"the cuda runtime does not run layers with {kind}; choose the runtime onnx")
        if self._place is not None:
            return CudaLayerKernel(spec, hidden_dtype, self._place.device.card, self._compute, threads)
        device = self._alone()
        kernel = CudaLayerKernel(spec, hidden_dtype, device.card, self._compute, threads)
        weakref.finalize(kernel, device.close)
        return kernel
