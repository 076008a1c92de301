"""`MlxRuntime`: transformer layers on mlx, on the GPU of Apple machines and on the CPU of Linux. Weights lie in memory
that both share."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
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
        return MlxLayerKernel(spec, hidden_dtype, _library())


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


class _MlxWeights(dict[str, Any]):
    """A layer's weights as mlx arrays."""


class MlxLayerKernel(LayerKernel):
    """One layer in fp32 arithmetic. int8 layers multiply the same integers as other runtimes in fp32, where sums beyond
    2**24 are rounded: results differ by up to 2e-3."""

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype, mx: Any) -> None:
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self._mx = mx

    def bind(self, weights: Weights) -> Weights:
        if isinstance(weights, _MlxWeights):
            return weights
        mx, bound = self._mx, _MlxWeights()
        for tensor in self.spec.tensors():
            value: Any = weights[tensor.name]
            # mlx computes when asked, and may read numpy's memory where it lies. A copy lets the caller overwrite its
            # buffers as soon as a layer has run. The window's own buffers are mlx's, and are taken as they are.
            value = mx.array(value) if isinstance(value, np.ndarray) else value
            bound[tensor.name] = value.astype(mx.float32)  # the same array where it is that already
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
        scores = 2 * spec.heads * longest * (prefix + longest)
        past = 4 * (prefix + longest) * keys
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
        ends = np.cumsum(lengths).tolist()
        parts = [
            self._attend(q[:, end - n : end], k[:, end - n : end], v[:, end - n : end], prefix, local, w)
            for end, n in zip(ends, lengths.tolist(), strict=True)
        ]
        attended = self._linear(mx.concatenate(parts, axis=0), w, "out")
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

    def _attend(self, q: Any, k: Any, v: Any, prefix: Prefix | None, local: bool, w: Mapping[str, Any]) -> Any:
        """Attention of one sequence's q [heads, length, head_size]; returns [length, heads * head_size]."""
        mx = self._mx
        length = q.shape[1]
        start = 0
        if prefix is not None:
            start = prefix.keys.shape[1]
            k = mx.concatenate([prefix.keys, k], axis=1)
            v = mx.concatenate([prefix.values, v], axis=1)
        visible = None
        if self.spec.causal:
            visible = mx.arange(start + length)[None, :] <= start + mx.arange(length)[:, None]
        elif local:
            visible = mx.abs(mx.arange(length)[None, :] - mx.arange(length)[:, None]) <= self.spec.window
        if self.spec.by_distance:
            known = {name: np.array(w[name]) for name in w if name.startswith("distance")}
            queries, keys = (np.array(x).transpose(1, 0, 2) for x in (q, k))
            visible = mx.array(distance_bias(self.spec, known, queries, keys, 0))
        context = mx.fast.scaled_dot_product_attention(q[None], k[None], v[None], scale=self.spec.scale, mask=visible)
        return context[0].transpose(1, 0, 2).reshape(length, -1)

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
        if self.spec.precision == "int8":
            scale = mx.maximum(mx.abs(x).max(axis=-1, keepdims=True), 1e-30) / 127
            y = mx.round(x / scale) @ weight * w[f"{name}.scale"] * scale
        else:
            y = x @ weight
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
