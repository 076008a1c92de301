"""`WebGpuRuntime`: encoder layers on a GPU by WebGPU, in its memory with a ledger of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.cache.cached_block import page_buffer
from edge.errors import CapabilityError
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import Hidden, HiddenDtype, LayerKernel, Pass, StatesElsewhere, Weights
from edge.runtimes.device import LEAST_CANDIDATES, DevicePlace, DeviceRuntime, DeviceWay, tiles
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, OffloadedStates, StatesShape, TokenChunk
from edge.trace import Trace

SHADER = Path(__file__).with_name("layer.wgsl")

_TILE = 32
_QUERIES = 8
_WIDEST_HEAD = 128
_PRECISIONS = {"fp32": 0, "fp16": 1, "int8": 2}
_ACTIVATIONS = {"": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4}
_ALIGNMENT = 16

_SATURATING_TOKENS = 16384
"""Tokens of a chunk beyond which a GPU gains little: a chunk costs the host about a millisecond for its commands."""


def refusal(spec: LayerSpec) -> str | None:
    """The reason why such layers do not run here; None if they do."""
    encoder = spec.norm == "layer" and not spec.norm_first and spec.bias and not spec.gated
    if not encoder or spec.causal or spec.qk_norm or spec.rope_theta is not None or spec.window or spec.by_distance:
        return "the webgpu runtime runs the layers of BERT and XLM-R only; choose the runtime onnx"
    if spec.head_size > _WIDEST_HEAD or spec.hidden % 2:
        return f"the webgpu runtime runs heads of at most {_WIDEST_HEAD} components and an even width"
    return None


@dataclass(frozen=True, slots=True)
class GpuWeights(Mapping[str, Any]):
    """A layer's weights in a buffer of the GPU, the first byte of each tensor, and whether the kernel made it."""

    buffer: Any
    places: Mapping[str, int]
    own: bool = False

    def __getitem__(self, name: str) -> int:
        return self.places[name]

    def __iter__(self) -> Any:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class WebGpuLayerKernel(LayerKernel):
    """One layer for packed sequences. fp16 weights are multiplied in float32; int8 layers multiply integers."""

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype, device: Any) -> None:
        """Makes a kernel of a `WebGpuDevice`, whose owner calls `release` before it is closed."""
        if (reason := refusal(spec)) is not None:
            raise CapabilityError(reason)
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self.saturating_tokens = _SATURATING_TOKENS
        self._device = device
        self._card = device.card
        self.buffers: dict[str, Any] = {}
        self._groups: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def bind(self, weights: Weights) -> Any:
        """The layer's weights on the GPU; arrays of the host are sent there, in place of those sent before."""
        if isinstance(weights, GpuWeights):
            return weights
        places, at = {}, 0
        for tensor in self.spec.tensors():
            places[tensor.name] = at
            at += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        block = np.zeros(at, np.uint8)
        for tensor in self.spec.tensors():
            start = places[tensor.name]
            block[start : start + tensor.nbytes] = np.ascontiguousarray(weights[tensor.name]).reshape(-1).view(np.uint8)
        buffer = self._room("weights", at)
        self._card.write(buffer, 0, block)
        return GpuWeights(buffer, places, own=True)

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        assert prefix is None
        result: Hidden = np.ascontiguousarray(states).copy()
        self.advance(result, lengths, weights)
        return result

    def advance(
        self, states: Any, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> None:
        assert prefix is None
        if not len(lengths):
            return
        bound = self.bind(weights)
        if isinstance(states, GpuRows):
            self._submit(states.buffer, states.first, lengths, bound)
            return
        card = self._card
        own = self._room("states", states.nbytes)
        with card.lock:
            card.write(own, 0, states)
            self._submit(own, 0, lengths, bound)
        states[...] = self._device.download(own, states.nbytes).view(states.dtype).reshape(states.shape)

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        """Bytes of device memory: what a chunk is computed in, and a copy of states and weights of the host."""
        spec = self.spec
        tiles = 16 * (tokens // _QUERIES + tokens)
        states = tokens * spec.hidden * np.dtype(self.hidden_dtype).itemsize
        return sum(self._sizes(tokens).values()) + tiles + states + len(self._sizes(1)) * 256 + 512

    def release(self) -> None:
        with self._card.lock:
            self._groups.clear()
            for buffer in self.buffers.values():
                self._card.destroy(buffer)
            self.buffers.clear()

    def _sizes(self, tokens: int) -> dict[str, int]:
        spec = self.spec
        attention, own = (spec.heads + 2 * spec.kv_heads) * spec.head_size, spec.heads * spec.head_size
        widths = {"x": spec.hidden, "wide": max(attention, spec.ffn), "context": own, "added": spec.hidden, "scales": 1}
        return {name: 4 * tokens * width for name, width in widths.items()}

    def _submit(self, states: Any, first: int, lengths: npt.NDArray[np.int32], w: GpuWeights) -> None:
        """Puts the kernels of a chunk, whose states begin at row `first` of a buffer, into the queue."""
        spec, card = self.spec, self._card
        tokens = int(lengths.sum())
        parts = tiles(lengths, _QUERIES)
        with card.lock:
            own = {name: self._room(name, nbytes) for name, nbytes in self._sizes(tokens).items()}
            own |= {"tiles": self._room("tiles", parts.nbytes), "chunk": self._room("chunk", 16)}
            card.write(own["tiles"], 0, parts)
            card.write(own["chunk"], 0, np.array([tokens, first, 0, 0], np.uint32))
            own |= {"states": states, "weights": w.buffer}
            steps = self._steps(tokens, len(parts), w)
            with self._device.compiling((spec, self.hidden_dtype)), card.answering():
                encoder = card.device.create_command_encoder()
                work = encoder.begin_compute_pass()
                for entry, constants, bindings, count in steps:
                    pipeline = card.pipeline(SHADER, entry, **constants)
                    work.set_pipeline(pipeline)
                    work.set_bind_group(0, self._group(pipeline, {n: own[name] for n, name in bindings.items()}))
                    work.dispatch_workgroups(*count)
                work.end()
                card.device.queue.submit([encoder.finish()])

    def _steps(
        self, tokens: int, tiles: int, w: GpuWeights
    ) -> list[tuple[str, dict[str, float], dict[int, str], tuple[int, ...]]]:
        """The kernels of a layer: entry point, constants, names of the buffers by binding, and workgroups."""
        spec, half = self.spec, self.hidden_dtype == "float16"
        steps: list[tuple[str, dict[str, float], dict[int, str], tuple[int, ...]]] = []

        def product(name: str, source: str, into: str, activation: str = "") -> None:
            inputs, outputs = spec.matrices()[name]
            bindings = {0: "chunk", 1: "weights", 3: source, 4: into}
            constants: dict[str, float] = {
                "K": inputs, "N": outputs, "WEIGHT": w[f"{name}.weight"], "BIAS": w[f"{name}.bias"],
                "PRECISION": _PRECISIONS[spec.precision], "ACTIVATION": _ACTIVATIONS[activation],
            }  # fmt: skip
            bindings[6] = "scales"
            if spec.precision == "int8":
                constants["SCALE"] = w[f"{name}.scale"]
                steps.append(("row_scales", {"K": inputs}, {3: source, 6: "scales"}, (tokens,)))
            steps.append(("product", constants, bindings, (-(-outputs // _TILE), -(-tokens // _TILE))))

        def norm(name: str, last: bool) -> None:
            constants: dict[str, float] = {
                "K": spec.hidden, "WEIGHT": w[f"{name}.weight"], "BIAS": w[f"{name}.bias"],
                "EPSILON": spec.norm_eps, "STORE": last, "HALF": half,
            }  # fmt: skip
            steps.append(("norm", constants, {0: "chunk", 1: "weights", 2: "states", 4: "x", 5: "added"}, (tokens,)))

        steps.append(("enter", {"K": spec.hidden, "HALF": half}, {0: "chunk", 2: "states", 4: "x"}, (tokens,)))
        product("qkv", "x", "wide")
        heads: dict[str, float] = {"HEADS": spec.heads, "KV_HEADS": spec.kv_heads, "HEAD": spec.head_size}
        steps.append(("attend", heads, {3: "wide", 4: "context", 7: "tiles"}, (tiles, spec.heads)))
        product("out", "context", "added")
        norm("norm1", False)
        product("up", "x", "wide", spec.activation)
        product("down", "wide", "added")
        norm("norm2", True)
        return steps

    def _group(self, pipeline: Any, buffers: dict[int, Any]) -> Any:
        key = id(pipeline), *((number, id(buffer)) for number, buffer in buffers.items())
        if key not in self._groups:
            # The objects are kept, so that no other one gets their numbers.
            self._groups[key] = self._card.bind(pipeline, buffers), (pipeline, buffers)
        return self._groups[key][0]

    def _room(self, name: str, nbytes: int) -> Any:
        buffer = self.buffers.get(name)
        if buffer is None or buffer.size < nbytes:
            with self._card.lock:
                if buffer is not None:
                    self._groups.clear()
                    del self.buffers[name]
                    self._card.destroy(buffer)
                self.buffers[name] = self._card.buffer(nbytes)
        return self.buffers[name]


class GpuVectors:
    def __init__(self, states: GpuStates, landing: Any, shape: tuple[int, int]) -> None:
        self._states = states
        self._landing = landing
        self._shape = shape
        self._found: npt.NDArray[np.float32] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if self._found is None:
            count, width = self._shape
            found = self._states.card.read(self._landing, 4 * count * width)
            self._found = found.view(np.float32).reshape(count, width)
            self._states.landed(self._landing)
        return np.array(self._found, dtype or np.float32)


class GpuRows(StatesElsewhere):
    """States [tokens, hidden] of a chunk, from row `first` of a buffer on."""

    def __init__(self, states: GpuStates, buffer: Any, first: int) -> None:
        self._states = states
        self.buffer = buffer
        self.first = first

    def __getitem__(self, rows: slice) -> GpuRows:
        return GpuRows(self._states, self.buffer, self.first + (rows.start or 0))

    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> GpuVectors:
        ends = self.first + np.cumsum(lengths.astype(np.int64))
        rows = np.empty((len(lengths), 2), np.uint32)
        rows[:, 0] = ends - 1 if token == "last" else ends - lengths
        rows[:, 1] = lengths if token == "all" else 1
        return self._states.pool(self.buffer, rows)


class GpuStates(HiddenStates):
    """All hidden states on the GPU."""

    def __init__(self, shape: StatesShape, device: Any, chunk_tokens: int, finished: Any) -> None:
        """States on a `WebGpuDevice` for chunks of at most `chunk_tokens`; `finished` is called at the end."""
        super().__init__(shape)
        self.card = device.card
        self._row = self.width * self.dtype.itemsize
        self._finished = finished
        tokens = min(self.tokens, max(chunk_tokens, int(shape.lengths.max(initial=0))))
        sequences = len(shape.lengths)
        self._landings: list[Any] = []
        self._leases = [device.memory.reserve("hidden states", self.device_nbytes(self.tokens, tokens, shape))]
        try:
            host = tokens * self._row + 8 * sequences * self.width  # of one layer's vectors, there and here
            self._leases.append(device.host.reserve("states on their way", host))
            self._flat: Any = None
            self._flat = self.card.buffer(self.tokens * self._row)
            self._small = [self.card.buffer(4 * sequences * self.width), self.card.buffer(8 * sequences)]
        except BaseException:
            if self._flat is not None:
                self.card.destroy(self._flat)
            for lease in self._leases:
                lease.release()
            raise
        self._tokens = tokens
        self._copy: Any = None

    @staticmethod
    def device_nbytes(tokens: int, chunk: int, shape: StatesShape) -> int:
        """Bytes of the states on the GPU, of the copy of a chunk, and of the vectors that are read."""
        row = shape.width * np.dtype(shape.dtype).itemsize
        return (tokens + chunk) * row + len(shape.lengths) * (4 * shape.width + 8) + 64

    def room(self, chunk: TokenChunk) -> npt.NDArray[Any]:
        """Host memory for layer 0's input of a chunk."""
        return np.empty((chunk.tokens, self.width), self.dtype)

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, Any]]:
        for chunk in chunks:
            runs = self._runs(chunk)
            if len(runs) == 1:
                yield chunk, GpuRows(self, self._flat, runs[0][0])
                continue
            if self._copy is None:
                self._copy = self.card.buffer(self._tokens * self._row)
            self._move(runs, outward=False)
            yield chunk, GpuRows(self, self._copy, 0)

    def store(self, chunk: TokenChunk, states: Any) -> None:
        runs = self._runs(chunk)
        if isinstance(states, GpuRows):
            if states.buffer is not self._flat:  # else they were changed in place
                self._move(runs, outward=True)
            return
        (first, _), *others = runs
        assert not others, "the chunks of the first layer have no gaps"
        self.card.write(self._flat, first * self._row, states)

    def pool(self, buffer: Any, rows: npt.NDArray[np.uint32]) -> GpuVectors:
        """Starts means of rows of a buffer (first row and number of rows of each, [n, 2]) on their way to the host."""
        card, (vectors, bounds), nbytes = self.card, self._small, 4 * len(rows) * self.width
        landing = card.landing(nbytes)
        self._landings.append(landing)
        with card.lock, card.answering():
            card.write(bounds, 0, rows)
            pipeline = card.pipeline(SHADER, "pool", K=self.width, HALF=self.dtype == np.float16)
            encoder = card.device.create_command_encoder()
            work = encoder.begin_compute_pass()
            work.set_pipeline(pipeline)
            work.set_bind_group(0, card.bind(pipeline, {2: buffer, 4: vectors, 8: bounds}))
            work.dispatch_workgroups(len(rows))
            work.end()
            encoder.copy_buffer_to_buffer(vectors, 0, landing, 0, nbytes)
            card.device.queue.submit([encoder.finish()])
        return GpuVectors(self, landing, (len(rows), self.width))

    def landed(self, landing: Any) -> None:
        """Frees what vectors have come through."""
        self._landings.remove(landing)
        landing.destroy()

    def close(self) -> None:
        for landing in self._landings:
            landing.destroy()
        self._landings.clear()
        for buffer in (self._flat, self._copy, *self._small):
            if buffer is not None:
                self.card.destroy(buffer)
        self._flat = self._copy = None
        self._small = []
        self._finished()
        for lease in self._leases:
            lease.release()

    def _move(self, runs: list[tuple[int, int]], *, outward: bool) -> None:
        """Copies runs of rows (first row, number of rows) of all states to the contiguous copy, or back."""
        card, row, at = self.card, self._row, 0
        with card.lock, card.answering():
            encoder = card.device.create_command_encoder()
            for first, rows in runs:
                places = [(self._flat, first * row), (self._copy, at * row)]
                (source, begin), (into, start) = reversed(places) if outward else places
                encoder.copy_buffer_to_buffer(source, begin, into, start, rows * row)
                at += rows
            card.device.queue.submit([encoder.finish()])


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
