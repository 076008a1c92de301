"""`CudaRuntime`: layers on a GPU by torch, in device memory with a separate budget."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Event, Stream
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import Hidden, HiddenDtype, LayerKernel, Pass, Weights, rotation, runs
from edge.runtimes.cuda.fused import QUERIES, FusedLayer, kernels
from edge.runtimes.cuda.states import DeviceRows, DeviceStates, HostStates, KeptPages, Readback
from edge.runtimes.cuda.tokens import TokenTable
from edge.runtimes.device import LEAST_CANDIDATES, DevicePlace, DeviceRuntime, DeviceWay, tiles
from edge.runtimes.input import Feed
from edge.streaming.forwarding import SLACK, PassSizes
from edge.streaming.hidden_states import HiddenStates, TokenChunk
from edge.streaming.window import Arrival
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """A chunk's sequences: their tokens, and the longest with prefix; on the device the places of the tokens in their
    sequences (int64 [tokens]), their starts (int32 [n + 1]), and `tiles` for the fused kernels."""

    lengths: npt.NDArray[np.int32]
    longest: int
    positions: Any
    starts: Any
    tiles: Any


def attend(torch: Any, spec: LayerSpec, place: AttentionLayout, q: Any, k: Any, v: Any, prefix: Any) -> Any:
    """Attention of queries [tokens, heads, head_size] to keys and values [tokens, kv_heads, head_size] of their own
    sequences, and to a prefix. In half precision on a GPU since Ampere this is one kernel for all lengths
    (FlashAttention, Dao 2023), without a prefix and for heads of a multiple of 8. Otherwise sequences of equal length
    are computed together, but as many as copies of the prefix fit the chunk's tokens."""
    fits = q.is_cuda and q.element_size() == 2 and spec.head_size % 8 == 0 and prefix is None
    if fits and torch.cuda.get_device_capability(q.device) >= (8, 0):
        return torch.ops.aten._flash_attention_forward(
            q, k, v, place.starts, place.starts, place.longest, place.longest, 0.0, spec.causal, False, scale=spec.scale
        )[0]
    before = 0 if prefix is None else prefix.tokens
    context = torch.empty_like(q)
    at = 0
    for equal, length in runs(place.lengths):
        step = max(1, len(q) // (length + before)) if before else equal
        for low in range(0, equal, step):
            count = min(step, equal - low)
            rows = count * length
            mine, keys, values = (x[at : at + rows].view(count, length, *x.shape[1:]) for x in (q, k, v))
            if prefix is not None:
                keys, values = (
                    torch.cat((first.expand(count, *first.shape), own), 1)
                    for first, own in ((prefix.keys, keys), (prefix.values, values))
                )
            mask = None
            if spec.causal and length > 1:
                mask = torch.ones(length, length + before, dtype=torch.bool, device=q.device).tril(before)
            found = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in (mine, keys, values)),
                attn_mask=mask, enable_gqa=spec.heads != spec.kv_heads,
            )  # fmt: skip
            context[at : at + rows] = found.transpose(1, 2).reshape(rows, *q.shape[1:])
            at += rows
    return context


SATURATING_TOKENS = 16384
"""Number of tokens in a chunk beyond which a large GPU gains little: the host thread needs about 0.3 ms to start a
chunk's kernels."""

_LAYOUTS = 256
"""Number of chunk layouts that are kept, because every layer of a pass has the same chunks."""

_FEWEST_ROWS = 32
"""Smallest number of rows for the int8 product of cuBLAS, which needs more than 16."""

MARGIN = 11, 10
"""Safety factor above the sum of the parts, because the allocator rounds up."""


@dataclass(slots=True, eq=False)
class CudaPrefix:
    """Keys (normed, rotated) and values of a prefix, [tokens, kv_heads, head_size], in the compute stream."""

    tokens: int
    keys: Any = None
    values: Any = None


class Bound(dict[str, Any]):
    """A layer's weights on the device, in the form of the products, valid for later work in the compute stream."""


class CudaLayerKernel(LayerKernel):
    """One layer for packed sequences on one device. Products and attention have the arithmetic `compute`; the residual
    stream of a pre-norm layer is summed in fp32; int8 layers multiply integers, or are widened to `compute` when they
    are bound. Only `run` and `run_prefix` for host arrays wait."""

    def __init__(
        self, spec: LayerSpec, hidden_dtype: HiddenDtype, device: Any, compute: str = "", int8: str = "",
        threads: int = 0,
    ) -> None:  # fmt: skip
        """Makes a kernel of a `CudaDevice`. `compute` is `float16`, `bfloat16` or `float32`; if empty, float16 on a
        GPU unless weights are fp32. `int8` is what becomes of int8 layers, `integer` or `wide`; if empty, they are
        widened on a GPU without our kernels, where torch's products of integers took 1.5 to 4 times as long as fp16
        on an H100. `threads` are those of torch's CPU device."""
        card, self._compiling = device.card, device.compiling
        torch = card.torch
        if threads and not card.on_gpu:
            torch.set_num_threads(threads)
        default = "float16" if card.on_gpu and spec.precision != "fp32" else "float32"
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self.saturating_tokens = SATURATING_TOKENS
        self.card = card
        self._torch = torch
        self._compute = getattr(torch, compute or default)
        self._residual = torch.float32 if spec.norm_first else self._compute
        wide = int8 == "wide" or (not int8 and card.on_gpu and not card.has_triton)
        self._form = replace(spec, precision="fp16") if wide and spec.precision == "int8" else spec
        module = kernels(card, self._form)
        self._fused = None if module is None else FusedLayer(card, self._form, self._compute, self._residual, module)
        # Tensor cores multiply bytes only if the second matrix is in column-major order.
        self._by_columns = card.on_gpu or self._fused is not None
        self._layouts: OrderedDict[tuple[bytes, int], AttentionLayout] = OrderedDict()
        self._angles: tuple[Any, Any] | None = None

    def bind(self, weights: Weights) -> Bound:
        """Converts weights that products cannot use; their bytes may be overwritten behind this point."""
        if isinstance(weights, Bound):
            return weights
        bound = Bound()
        self.card.compute.run(lambda: self._bind(weights, bound))
        return bound

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        rows = self._upload(states)
        self.advance(rows, lengths, weights, prefix)
        return self._download(rows)

    def advance(
        self, states: Any, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> None:
        if isinstance(states, np.ndarray):
            states[...] = self.run(states, lengths, weights, prefix)
            return
        assert prefix is None or (isinstance(prefix, CudaPrefix) and self.spec.causal)
        tensor, bound, own = states.tensor, self.bind(weights), lengths.copy()
        if len(own):
            self.card.compute.run(lambda: self._replace(tensor, own, bound, prefix, None))

    def run_prefix(self, states: Any, weights: Weights) -> tuple[Any, CudaPrefix]:
        """See `LayerKernel.run_prefix`. States can also be `DeviceRows`; the new states are then `DeviceRows`, too."""
        if not self.spec.causal:
            raise CapabilityError("only a causal layer has a prefix that does not depend on what follows it")
        rows = self._upload(states) if isinstance(states, np.ndarray) else states
        tensor, bound = rows.tensor, self.bind(weights)
        found = CudaPrefix(len(tensor))
        lengths = np.array([len(tensor)], np.int32)
        self.card.compute.run(lambda: self._replace(tensor, lengths, bound, None, found))
        return (self._download(rows) if rows is not states else rows), found

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        spec, size = self.spec, self._compute.itemsize
        queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
        up = spec.ffn * (2 if spec.gated else 1)
        quantized, whole, rotated, copied = int(self._form.precision == "int8"), 0, 0, 0
        if self._fused is None:
            whole = 8 * quantized  # sums as int32 and as fp32
            quantized *= 9  # an activation as fp32, its magnitude, and its int8 value
            rotated = 2 * size + 12 if spec.qk_norm or spec.rope_theta is not None else 0
            copied = 2 * size * keys if prefix else 0
        attention = (queries + 2 * keys) * (size + whole) + (queries + keys) * rotated + queries * size + copied
        feed_forward = up * (size + whole) + spec.ffn * (2 * size + quantized)
        per_token = spec.hidden * (12 + 2 * size + quantized) + max(attention, feed_forward) + 16
        scores = 0
        if self._fused is None:
            scores = 4 * spec.heads * longest * (prefix + longest) * 2
        alone = 2 * size * keys * (prefix + longest) + 8 * (prefix + longest) * spec.head_size
        sizes = [rows * columns for rows, columns in spec.matrices().values()]
        bound = sum(sizes) * self._bound_size() + (4 * max(sizes) if self._form is not spec else 0)
        total: int = tokens * per_token + scores + alone + bound
        return total * MARGIN[0] // MARGIN[1]

    def _bound_size(self) -> int:
        """Bytes per weight if `bind` copies weights; 0 if it uses them in place."""
        torch, stored = self._torch, self.spec.precision
        if self._form.precision == "int8":
            return 1 if self._by_columns else 0
        if self._form is not self.spec:
            return int(self._compute.itemsize)
        own = torch.float16 if stored == "fp16" else torch.float32
        return 0 if own == self._compute else int(self._compute.itemsize)

    def _bind(self, weights: Weights, bound: Bound) -> None:
        torch, spec = self._torch, self.spec
        for tensor in spec.tensors():
            value = weights[tensor.name]
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(np.array(value)).to(self.card.device)
            matrix, _, kind = tensor.name.partition(".")
            if tensor.dtype == "int8" and self._form is not spec:
                value = (value * bound.pop(f"{matrix}.scale")).to(self._compute)
            elif tensor.dtype == "int8":
                value = value.t().contiguous().t() if self._by_columns else value
            elif len(tensor.shape) == 2:
                value = value.to(self._compute)
            elif kind == "bias" and matrix in spec.matrices() and self._form.precision != "int8":
                value = value.to(self._residual if matrix in ("out", "down") else self._compute)
            elif matrix in ("norm1", "norm2"):
                value = value.to(self._residual)
            bound[tensor.name] = value.clone() if len(tensor.shape) == 1 else value

    def _replace(
        self, states: Any, lengths: Any, w: Bound, prefix: CudaPrefix | None, found: CudaPrefix | None
    ) -> None:
        if self._fused is None:
            states.copy_(self._advance(states, lengths, w, prefix, found))
            return
        place = self._layout(lengths, 0 if prefix is None else prefix.tokens)
        tables = None
        if self.spec.rope_theta is not None:
            tables = place.positions, *self._rotation(place.longest)
        with self._compiling((self._form, self._compute, prefix is None)):
            self._fused.advance(states, w, place.tiles, tables, prefix, found)

    def _advance(self, states: Any, lengths: Any, w: Bound, prefix: CudaPrefix | None, found: CudaPrefix | None) -> Any:
        """The new states of a chunk. Fills `found` with its keys and values, if given."""
        torch, spec = self._torch, self.spec
        place = self._layout(lengths, 0 if prefix is None else prefix.tokens)
        x = states.to(self._residual)
        normed = (self._norm(x, w, "norm1") if spec.norm_first else x).to(self._compute)
        qkv = self._linear(normed, w, "qkv").view(len(x), -1, spec.head_size)
        q, k, v = torch.split(qkv, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
        if spec.qk_norm:
            q = self._rms(q, w["q_norm.weight"])
            k = self._rms(k, w["k_norm.weight"])
        if spec.rope_theta is not None:
            cosines, sines = (table[place.positions][:, None] for table in self._rotation(place.longest))
            q, k = self._rotate(q, cosines, sines), self._rotate(k, cosines, sines)
        q, k = q.to(self._compute), k.to(self._compute)
        if found is not None:
            found.keys, found.values = k.contiguous(), v.contiguous()
        context = attend(torch, spec, place, q, k, v, prefix)
        attended = self._linear(context.reshape(len(x), -1), w, "out", self._residual)
        del qkv, q, k, v, context
        if spec.norm_first:
            x = x + attended
            return x + self._feed_forward(self._norm(x, w, "norm2").to(self._compute), w)
        x = self._norm(x + attended, w, "norm1")
        return self._norm(x + self._feed_forward(x, w), w, "norm2")

    def _feed_forward(self, x: Any, w: Bound) -> Any:
        functional, spec = self._torch.nn.functional, self.spec
        up = self._linear(x, w, "up")
        gate, up = self._torch.chunk(up, 2, dim=-1) if spec.gated else (up, None)
        if spec.activation in ("gelu", "gelu_tanh"):
            inner = functional.gelu(gate, approximate="tanh" if spec.activation == "gelu_tanh" else "none")
        else:
            inner = functional.silu(gate) if spec.activation == "silu" else functional.relu(gate)
        if up is not None:
            inner = inner * up
        return self._linear(inner, w, "down", self._residual)

    def _linear(self, x: Any, w: Bound, name: str, dtype: Any = None) -> Any:
        torch, spec = self._torch, self.spec
        dtype = dtype or self._compute
        weight = w[f"{name}.weight"]
        bias = w[f"{name}.bias"] if spec.bias else None
        if self._form.precision == "int8":
            wide = x.to(torch.float32)
            scale = wide.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-30).div_(127)
            whole = torch.round_(wide.div_(scale) if wide is not x else wide / scale).to(torch.int8)
            y = self._integer_product(whole, weight).to(torch.float32).mul_(w[f"{name}.scale"]).mul_(scale)
            return (y if bias is None else y.add_(bias)).to(dtype)
        if dtype != self._compute:  # the residual stream is summed in a higher precision than that of the product
            y = torch.mm(x, weight, out_dtype=dtype) if x.is_cuda else (x @ weight).to(dtype)
            return y if bias is None else y.add_(bias)
        return x @ weight if bias is None else torch.addmm(bias, x, weight)

    def _integer_product(self, x: Any, weight: Any) -> Any:
        torch, rows = self._torch, len(x)
        if rows < _FEWEST_ROWS and x.is_cuda:
            padded = x.new_zeros(_FEWEST_ROWS, x.shape[1])
            padded[:rows] = x
            return torch._int_mm(padded, weight)[:rows]
        return torch._int_mm(x, weight)

    def _norm(self, x: Any, w: Bound, name: str) -> Any:
        functional, width = self._torch.nn.functional, (self.spec.hidden,)
        if self.spec.norm == "rms":
            return functional.rms_norm(x, width, w[f"{name}.weight"], self.spec.norm_eps)
        return functional.layer_norm(x, width, w[f"{name}.weight"], w[f"{name}.bias"], self.spec.norm_eps)

    def _rms(self, x: Any, weight: Any) -> Any:
        return self._torch.nn.functional.rms_norm(
            x.to(self._torch.float32), (self.spec.head_size,), weight, self.spec.norm_eps
        )

    def _rotate(self, x: Any, cosines: Any, sines: Any) -> Any:
        low, high = self._torch.chunk(x.to(self._torch.float32), 2, dim=-1)
        return self._torch.cat((low * cosines - high * sines, high * cosines + low * sines), dim=-1)

    def _rotation(self, tokens: int) -> tuple[Any, Any]:
        spec = self.spec
        assert spec.rope_theta is not None
        if self._angles is None or len(self._angles[0]) < tokens:
            tables = rotation(spec.rope_theta, spec.head_size, max(tokens, 512), spec.rope_factor)
            first, second = (self._torch.from_numpy(table).to(self.card.device) for table in tables)
            self._angles = first, second
        return self._angles

    def _layout(self, lengths: Any, prefix: int) -> AttentionLayout:
        key = (lengths.tobytes(), prefix)
        found = self._layouts.get(key)
        if found is None:
            ends = np.cumsum(lengths)
            positions = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths) + prefix
            sent = [
                self._torch.from_numpy(values).to(self.card.device, non_blocking=True)
                for values in (positions, np.concatenate(([0], ends)).astype(np.int32), tiles(lengths, QUERIES))
            ]
            found = self._layouts[key] = AttentionLayout(lengths, int(lengths.max()) + prefix, *sent)
            while len(self._layouts) > _LAYOUTS:
                self._layouts.popitem(last=False)
        return found

    def _upload(self, states: Hidden) -> DeviceRows:
        return DeviceRows.of(states, self.card)

    def _download(self, rows: DeviceRows) -> Hidden:
        found: list[Any] = []
        self.card.compute.run(lambda: found.append(rows.tensor.cpu().numpy()))
        self.card.compute.synchronize()
        result: Hidden = found[0]
        return np.array(result)


_COMPUTE, _INT8 = ("", "float16", "bfloat16", "float32"), ("", "integer", "wide")

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
    holds_rows = True

    def __init__(self, device: Any, lane: Lane, trace: Trace) -> None:
        super().__init__(device, lane, trace)
        self._rows_staging: Any = None
        self._tokens = TokenTable(device)
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
        with ExitStack() as opened:
            opened.callback(self._tokens.end)
            self._tokens.begin(run, self._rows_staging, tokens)
            readback = Readback(device, device.host, len(run.batch), shape.width)
            opened.callback(readback.close)
            if run.memory_plan.resident:
                states: HiddenStates = DeviceStates(shape, device, tokens, self._tokens, readback)
            else:
                states = HostStates(shape, device, tokens, self._tokens, readback, self._pages)
            opened.pop_all()
        return states

    def embed(self, feed: Feed, states: HiddenStates) -> Callable[[TokenChunk], Any]:
        return feed.tokens

    def beside(self, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Token rows, and computing layer 0's input of them."""
        return TokenTable.working_nbytes(model, chunk_tokens, longest)

    def prefix(self, states: npt.NDArray[Any]) -> DeviceRows:
        """Sends the prefix's input to the device, where its states stay."""
        return DeviceRows.of(states, self.device.card)

    def close(self) -> None:
        self.device.card.synchronize()
        if self._rows_staging is not None:
            self._rows_staging.close()
        self._tokens.close()
        self._pages.close()
        super().close()


class CudaRuntime(DeviceRuntime):
    """Runs every `LayerSpec` with torch on a GPU. The options are those of the device `cuda`, `compute` and `int8`."""

    name = "cuda"
    places = CudaPlace
    libraries = ("torch",)
    compiled_nbytes = 1 << 20

    def __init__(self, *, compute: str = "", int8: str = "", on: str = "cuda", count: str = "", **options: Any) -> None:
        """Of several cards (`count`, and `on` with a plus between them) the first one runs layers."""
        if compute not in _COMPUTE:
            raise ConfigError(f"products are computed in float16, bfloat16 or float32, not {compute!r}")
        if int8 not in _INT8:
            raise ConfigError(f"int8 layers are computed as integer or wide, not {int8!r}")
        super().__init__(on=on.partition("+")[0], **options)
        self._arithmetic = compute, int8

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
            return CudaLayerKernel(spec, hidden_dtype, self._place.device, *self._arithmetic, threads)
        device = self._alone()
        kernel = CudaLayerKernel(spec, hidden_dtype, device, *self._arithmetic, threads)
        weakref.finalize(kernel, device.close)
        return kernel
