"""`CudaRuntime`: layers on a GPU, in device memory with a separate budget."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Event, Stream, open_device
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import DevicePlace, HiddenDtype, Pass, Runtime
from edge.runtimes.cuda.layer import CudaLayerKernel
from edge.runtimes.cuda.states import DeviceRows, DeviceStates, Entrance, HostStates, KeptPages, Readback
from edge.runtimes.input import Feed
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, TokenChunk
from edge.streaming.window import Arrival, Way
from edge.trace import Trace

_COMPUTE = ("", "float16", "bfloat16", "float32")

_ROWS_STAGING = 4 << 20
"""Bytes of each of the two page-locked buffers through which token rows are transferred."""

_LEAST_CANDIDATES = 64
"""Number of sequences with vectors to read back, in the estimate of the smallest host memory."""

_ALONE = 1 << 50
"""The memory limit of a kernel that is used without an engine, such as in a measurement of single layers."""


class CudaRuntime(Runtime):
    """Runs every `LayerSpec` with torch on a GPU. The options are those of the device `cuda`, and `compute`, the
    arithmetic of products: `float16` (the default on a GPU), `bfloat16` or `float32`."""

    name = "cuda"
    libraries = ("torch",)
    compiled_nbytes = 1 << 20

    def __init__(self, *, compute: str = "", **options: Any) -> None:
        if compute not in _COMPUTE:
            raise ConfigError(f"products are computed in float16, bfloat16 or float32, not {compute!r}")
        self._compute = compute
        self._options = options
        self._place: CudaPlace | None = None

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> CudaPlace:
        self._place = CudaPlace(self._open(budget, trace), lane, trace)
        return self._place

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """Returns zero for every chunk, because the host computes nothing. `working_nbytes` gives the host's memory."""
        return lambda tokens, longest, prefix: 0

    def working_nbytes(self, one: PassSizes) -> int:
        """Bytes of host memory: page-locked buffers for two layers, for token rows and for vectors from the device, and
        the embedding of a prefix, which the host computes."""
        staging = 2 * one.layer_nbytes + 2 * _ROWS_STAGING
        return staging + Readback.memory_needed(_LEAST_CANDIDATES, one.width) + 3 * 4 * one.longest * one.width + SLACK

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> CudaLayerKernel:
        for kind, has in (
            ("biases of distances", spec.by_distance), ("local attention", spec.window),
            ("norms after a part", spec.post_norms),
        ):  # fmt: skip
            if has:
                raise CapabilityError(f"the cuda runtime does not run layers with {kind}; choose the runtime onnx")
        if self._place is not None:
            return CudaLayerKernel(spec, hidden_dtype, self._place.device.card, self._compute, threads)
        device = self._open(MemoryBudget(_ALONE, part=True), Trace())
        kernel = CudaLayerKernel(spec, hidden_dtype, device.card, self._compute, threads)
        weakref.finalize(kernel, device.close)
        return kernel

    def _open(self, budget: MemoryBudget, trace: Trace) -> Any:
        return open_device(self.name, budget, trace=trace, **self._options)


class CudaPlace(DevicePlace):
    """The memory of a GPU (`edge.devices.cuda.device.CudaDevice`), as the workplace of one model."""

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        super().__init__(device, lane, trace)
        self._rows_staging: Any = None
        self._pages = KeptPages(device)

    def way(self, model: PackedModel) -> Way:
        """Layers are read from the disk into page-locked memory, and transferred to the device from there."""
        largest = max(model.file.nbytes(block) for block in model.layer_blocks)
        self._way = way = DeviceWay(self.device, self._disk, self.lane, largest)
        return way

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> dict[str, Any]:
        """Views of the tensors in device memory."""
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
        """The device computes layer 0's input."""
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


class DeviceWay:
    """Two lanes in a row: from the disk into one of two page-locked buffers, and from there to the device.

    The thread that requests a block waits only until the transfer to the device has been put into the inward stream.
    The inward stream waits for kernels that still use the buffer, and the compute stream waits for the transfer.
    """

    def __init__(self, device: Any, disk: Lane, link: Lane, nbytes: int) -> None:
        """Opens the way for blocks of at most `nbytes`."""
        self._device = device
        self._disk = disk
        self._link = link
        self._nbytes = nbytes
        self._staging: Any = None

    def allocate(self, nbytes: int) -> Any:
        """A tensor of bytes on the device."""
        return self._device.card.allocate(nbytes)

    def free(self, buffer: Any) -> None:
        """Waits until no kernel uses the buffer, because the allocator may reuse its memory at once."""
        self._device.card.synchronize()

    def fetch(self, source: BlockSource, block: BlockId, into: Any, *, priority: float = 0.0) -> Arrival:
        """Requests a block. The disk is read while the previous block crosses the link."""
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

    def loss(self, nbytes: int) -> float:
        """The cost of transferring the bytes over both lanes again."""
        return self._link.rate.loss(nbytes)

    def close(self) -> None:
        """Frees the page-locked buffers."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None


class _DeviceArrival:
    """A block that is being transferred to the device."""

    def __init__(self, ticket: Ticket, arrived: list[Event], compute: Stream) -> None:
        self._ticket = ticket
        self._arrived = arrived
        self._compute = compute

    @property
    def failed(self) -> bool:
        return self._ticket.failed

    def wait(self) -> None:
        """Makes the compute stream wait for the transfer."""
        self._ticket.wait()
        self._compute.wait(self._arrived[0])

    def settle(self) -> None:
        """Waits until the transfer is in the inward stream, which runs it before the next one into the same buffer."""
        self._ticket.settle()
