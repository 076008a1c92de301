"""`MlxRuntime`: transformer layers on mlx, on the GPU of Apple machines and on the CPU of Linux. Weights lie in memory
that both share."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.errors import CapabilityError
from edge.link import Lane, Ticket
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.runtimes.base import (
    Hidden,
    HiddenDtype,
    LayerKernel,
    Prefix,
    Runtime,
    Weights,
    Workplace,
    distance_bias,
    rotation,
)
from edge.streaming.window import HostWay, Way
from edge.trace import Trace


class MlxRuntime(Runtime):
    """Runs every `LayerSpec`. mlx chooses its threads; its cache of freed buffers is off in the process."""

    name = "mlx"
    libraries = ("mlx.core",)

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> UnifiedPlace:
        return UnifiedPlace(budget, lane, _library())

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> MlxLayerKernel:
        mx = _library()
        return MlxLayerKernel(spec, hidden_dtype, mx, half=mx.default_device().type == mx.DeviceType.gpu)


class MetalRuntime(MlxRuntime):
    """The layers of the device `metal`."""

    name = "metal"


def _library() -> Any:
    try:
        mx = importlib.import_module("mlx.core")
    except ImportError as error:
        raise CapabilityError('the mlx runtime needs mlx: pip install "edge-rag[mlx]"') from error
    mx.set_cache_limit(0)
    return mx


_PADDED = 1.25
"""Tokens of sequences that are padded to equal length, at most, per token of theirs."""


def _similar(lengths: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int32]]:
    """The lengths of neighbouring sequences that may be padded to equal length, in order."""
    low = 0
    for high in range(1, len(lengths) + 1):
        more = lengths[low : high + 1]
        if high == len(lengths) or len(more) * more.max() > _PADDED * more.sum():
            yield lengths[low:high]
            low = high


class _MlxWeights(dict[str, Any]):
    """A layer's weights as mlx arrays."""


class MlxLayerKernel(LayerKernel):
    """One layer. On a GPU (`half`), products and attention of fp16 and int8 layers are computed in fp16, with int8
    weights times their scales; otherwise in fp32, where int8 layers multiply the same integers as other runtimes, and
    sums beyond 2**24 are rounded: results differ by up to 2e-3."""

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype, mx: Any, *, half: bool = False) -> None:
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self._mx = mx
        self._compute = mx.float16 if half and spec.precision != "fp32" else mx.float32

    def bind(self, weights: Weights) -> Weights:
        if isinstance(weights, _MlxWeights):
            return weights
        mx, bound = self._mx, _MlxWeights()
        for tensor in self.spec.tensors():
            value: Any = weights[tensor.name]
            # mlx computes when asked, and may read numpy's memory where it lies. A copy lets the caller overwrite its
            # buffers as soon as a layer has run. The window's own buffers are mlx's, and are taken as they are.
            value = mx.array(value) if isinstance(value, np.ndarray) else value
            matrix = len(tensor.shape) == 2 and self._compute == mx.float16
            bound[tensor.name] = value if matrix else value.astype(mx.float32)  # the same array if it is that already
        for name in self.spec.matrices() if self._compute == mx.float16 and self.spec.precision == "int8" else ():
            weight = bound[f"{name}.weight"].astype(mx.float32) * bound.pop(f"{name}.scale")
            bound[f"{name}.weight"] = weight.astype(mx.float16)
        mx.eval(*bound.values())
        return bound

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        assert prefix is None or (isinstance(prefix, Prefix) and self.spec.causal)
        return self._run(states, lengths, weights, prefix)[0]

    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, Prefix]:
        if not self.spec.causal:
            raise CapabilityError("only a causal layer has a prefix that does not depend on what follows it")
        result, keys, values = self._run(states, np.array([len(states)], np.int32), weights, None)
        return result, Prefix(keys, values)

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        spec = self.spec
        queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
        rows = 6 * spec.hidden + 4 * (queries + 2 * keys) + 4 * spec.ffn * (2 if spec.gated else 1)
        padded = max(longest, int(_PADDED * tokens))
        scores = (5 if spec.by_distance else 2) * spec.heads * padded * (prefix + longest)
        past = padded * (2 * queries + 4 * keys) + 4 * keys * -(-padded // longest) * prefix
        # Weights are copied as they are where they lie in other memory than mlx's, and converted to fp32 once a layer.
        converted = 0 if spec.precision == "fp32" else sum(math.prod(shape) for shape in spec.matrices().values())
        return 4 * (tokens * rows + scores + past + converted) + spec.nbytes

    def _run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: Prefix | None
    ) -> tuple[Hidden, Any, Any]:
        mx, spec = self._mx, self.spec
        w = self.bind(weights)
        x = mx.array(states).astype(mx.float32)
        local, norm_input = spec.kind(w)
        normed = self._norm(x, w, "norm1") if spec.norm_first and norm_input else x
        qkv = self._linear(normed, w, "qkv").reshape(len(states), -1, spec.head_size).transpose(1, 0, 2)
        q, k, v = mx.split(qkv, [spec.heads, spec.heads + spec.kv_heads], axis=0)
        if spec.qk_norm:
            q = mx.fast.rms_norm(q, w["q_norm.weight"], spec.norm_eps)
            k = mx.fast.rms_norm(k, w["k_norm.weight"], spec.norm_eps)
        start = 0 if prefix is None else prefix.keys.shape[1]
        theta = spec.local_theta if local else spec.rope_theta
        if theta is not None:
            positions = np.concatenate([np.arange(start, start + n) for n in lengths.tolist()])
            angles = rotation(theta, spec.head_size, start + int(lengths.max()), spec.rope_factor)
            cosines, sines = (mx.array(values[positions]) for values in angles)
            q, k = self._rotate(q, cosines, sines), self._rotate(k, cosines, sines)
        attended = self._linear(self._attend(q, k, v, lengths, prefix, local, w), w, "out")
        if spec.norm_first:
            x = x + (self._norm(attended, w, "norm3") if spec.post_norms else attended)
            advanced = self._feed_forward(self._norm(x, w, "norm2"), w)
            x = x + (self._norm(advanced, w, "norm4") if spec.post_norms else advanced)
        else:
            x = self._norm(x + attended, w, "norm1")
            x = self._norm(x + self._feed_forward(x, w), w, "norm2")
        x = x.astype(mx.float16 if self.hidden_dtype == "float16" else mx.float32)
        mx.eval(x, k, v)
        return np.array(x), k, v

    def _attend(
        self, q: Any, k: Any, v: Any, lengths: npt.NDArray[np.int32], prefix: Prefix | None, local: bool,
        w: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        """Attention of packed sequences [heads, tokens, head_size]; returns [tokens, heads * head_size]. Neighbours of
        similar length are computed in one call."""
        mx = self._mx
        q, k, v = (x.astype(self._compute) for x in (q, k, v))
        parts, at = [], 0
        for own in _similar(lengths):
            tokens = np.arange(own.max())
            inside = tokens < own[:, None]
            places = mx.array(np.where(inside, (at + np.cumsum(own) - own)[:, None] + tokens, 0))
            queries, keys, values = (x[:, places].swapaxes(0, 1) for x in (q, k, v))
            mask = self._mask(queries, keys, inside, local, w)
            if prefix is not None:
                before = prefix.keys.shape[1]
                keys, values = (
                    mx.concatenate([mx.broadcast_to(shared, (len(own), *shared.shape)).astype(x.dtype), x], axis=2)
                    for shared, x in ((prefix.keys, keys), (prefix.values, values))
                )
                mask = mx.pad(mask, [(0, 0)] * 3 + [(before, 0)], constant_values=True)
            context = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.spec.scale, mask=mask)
            context = context.swapaxes(1, 2).reshape(inside.size, -1)
            parts.append(context if inside.all() else context[mx.array(np.flatnonzero(inside))])
            at += int(own.sum())
        return mx.concatenate(parts, axis=0)

    def _mask(self, q: Any, k: Any, inside: npt.NDArray[np.bool_], local: bool, w: Mapping[str, Any]) -> Any:
        """Which of its sequence's tokens a token sees [sequences, 1, tokens, tokens], or what is added to its scores
        [sequences, heads, tokens, tokens]; None if it sees all. `inside` tells padding [sequences, tokens]."""
        mx, spec = self._mx, self.spec
        tokens = np.arange(inside.shape[1])
        visible = inside[:, None, None, :]
        if spec.by_distance:
            known = {name: np.array(w[name]) for name in w if name.startswith("distance")}
            rows = zip(*(np.array(x.astype(mx.float32)).swapaxes(1, 2) for x in (q, k)), strict=True)
            bias = np.stack([distance_bias(spec, known, queries, keys, 0) for queries, keys in rows])
            return mx.array(np.where(visible, bias, -np.inf)).astype(self._compute)
        apart = tokens[None, :] - tokens[:, None]
        if spec.causal:
            return mx.array((apart <= 0)[None, None])
        if local:
            return mx.array(visible & (np.abs(apart) <= spec.window))
        return None if inside.all() else mx.array(visible)

    def _feed_forward(self, x: Any, w: Mapping[str, Any]) -> Any:
        mx = self._mx
        up = self._linear(x, w, "up")
        if self.spec.gated:
            gate, up = mx.split(up, 2, axis=-1)
            return self._linear(self._activation(gate) * up, w, "down")
        return self._linear(self._activation(up), w, "down")

    def _activation(self, x: Any) -> Any:
        mx = self._mx
        if self.spec.activation == "gelu":
            return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))
        if self.spec.activation == "gelu_tanh":
            return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x * mx.sigmoid(x) if self.spec.activation == "silu" else mx.maximum(x, 0)

    def _norm(self, x: Any, w: Mapping[str, Any], name: str) -> Any:
        if self.spec.norm == "rms":
            return self._mx.fast.rms_norm(x, w[f"{name}.weight"], self.spec.norm_eps)
        return self._mx.fast.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], self.spec.norm_eps)

    def _linear(self, x: Any, w: Mapping[str, Any], name: str) -> Any:
        mx = self._mx
        weight = w[f"{name}.weight"]
        if f"{name}.scale" in w:
            scale = mx.maximum(mx.abs(x).max(axis=-1, keepdims=True), 1e-30) / 127
            y = mx.round(x / scale) @ weight * w[f"{name}.scale"] * scale
        else:
            y = (x.astype(self._compute) @ weight).astype(mx.float32)
        return y + w[f"{name}.bias"] if self.spec.bias else y

    def _rotate(self, x: Any, cosines: Any, sines: Any) -> Any:
        low, high = self._mx.split(x, 2, axis=-1)
        return self._mx.concatenate([low * cosines - high * sines, high * cosines + low * sines], axis=-1)


class Shared:
    """A buffer, or a part of a buffer, that numpy (`view`) and mlx (`array`) access in place."""

    def __init__(self, array: Any, view: npt.NDArray[np.uint8]) -> None:
        self.array = array
        self.view = view

    def __getitem__(self, part: slice) -> Shared:
        return Shared(self.array[part], self.view[part])


class SharedWay(HostWay):
    """Reads blocks from the disk into buffers of mlx."""

    def __init__(self, mx: Any, lane: Lane) -> None:
        super().__init__(lane)
        self._mx = mx

    def allocate(self, nbytes: int) -> Shared:
        array = self._mx.zeros(nbytes, dtype=self._mx.uint8)
        self._mx.eval(array)
        return Shared(array, np.array(array, copy=False))

    def fetch(self, source: BlockSource, block: BlockId, into: Shared, *, priority: float = 0.0) -> Ticket:
        """Requests a block from the lane. No kernel reads the buffer any more, because `run` waits for its result."""
        return self._lane.fetch(source, block, into.view.data, priority=priority)


class UnifiedPlace(Workplace):
    """The memory of this process, which the GPU reads directly. One budget covers both."""

    def __init__(self, memory: MemoryBudget, lane: Lane, mx: Any) -> None:
        super().__init__(memory, lane)
        self._mx = mx

    def way(self, model: PackedModel) -> Way:
        """Layers are read from the disk into buffers of mlx."""
        return SharedWay(self._mx, self.lane)

    def tensors(self, model: PackedModel, layer: int, buffer: Shared) -> dict[str, Any]:
        places = model.places[model.layer_blocks[layer]]
        kinds = {dtype: getattr(self._mx, dtype.name) for _, _, dtype, _ in places}
        return {name: buffer.array[part].view(kinds[dtype]).reshape(shape) for name, part, dtype, shape in places}
