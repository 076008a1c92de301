"""`NumpyRuntime`: a transformer layer in plain numpy, the readable reference for tests of the runtimes.

It runs one sequence after the other and keeps every intermediate value. Its only aim is correctness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import plugins
from edge.errors import CapabilityError
from edge.models.spec import Activation, LayerSpec
from edge.runtimes.base import Hidden, HiddenDtype, LayerKernel, Prefix, Runtime, Weights, distance_bias, rotation

Array = npt.NDArray[np.float32]


class NumpyRuntime(Runtime):
    """Runs every `LayerSpec`, slowly. numpy decides on the number of threads."""

    name = "numpy"

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> NumpyLayerKernel:
        return NumpyLayerKernel(spec, hidden_dtype)


def register() -> None:
    """Makes the runtime known as `numpy` in this process, as an installed package would."""
    point = EntryPoint("numpy", f"{__name__}:{NumpyRuntime.__name__}", "edge.runtimes")
    installed = plugins._registered

    def registered(group: str) -> EntryPoints:
        return EntryPoints([*installed(group), *([point] if group == point.group else [])])

    plugins._registered = registered


class NumpyLayerKernel(LayerKernel):
    """A layer in fp32 arithmetic, for matrices of every stored precision.

    With int8 matrices the activations are quantized per token: scale = max|x| / 127 over the row,
    q = round-half-even(x / scale), y = int32(q @ w) * scale * column scale.
    """

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype) -> None:
        self.spec = spec
        self.hidden_dtype = hidden_dtype

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        assert prefix is None or isinstance(prefix, Prefix)
        sequences = np.split(states, np.cumsum(lengths)[:-1])
        return np.concatenate([self._run(sequence, weights, prefix)[0] for sequence in sequences])

    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, Prefix]:
        if not self.spec.causal:
            raise CapabilityError("only a causal layer has a prefix that does not depend on what follows it")
        result, keys, values = self._run(states, weights, None)
        return result, Prefix(keys, values)

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        spec = self.spec
        rows = 6 * spec.hidden + 4 * (spec.heads + 2 * spec.kv_heads) * spec.head_size
        rows += 6 * spec.ffn * (2 if spec.gated else 1)
        keys = 2 * (prefix + longest) * (spec.heads + spec.kv_heads) * spec.head_size
        scores = (6 if spec.by_distance else 4) * spec.heads * longest * (prefix + longest)
        scores += (
            4 * spec.heads * longest * (longest + 2 * spec.spans) + 4 * spec.spans * spec.hidden if spec.spans else 0
        )
        # An int8 matrix is converted to int32 for the product, an fp16 matrix to fp32.
        widened = 0 if spec.precision == "fp32" else max(math.prod(shape) for shape in spec.matrices().values())
        return 4 * (longest * rows + 2 * tokens * spec.hidden + keys + scores + widened)

    def _run(self, states: Hidden, weights: Weights, prefix: Prefix | None) -> tuple[Hidden, Array, Array]:
        """Advances one sequence [length, hidden], and returns the new states, the keys and the values."""
        spec = self.spec
        length = len(states)
        x: Array = states.astype(np.float32)
        local, normed_input = spec.kind(weights)
        normed = self._norm(x, weights, "norm1") if spec.norm_first and normed_input else x
        qkv = self._linear(normed, weights, "qkv").reshape(length, -1, spec.head_size)
        q, k, v = np.split(qkv, [spec.heads, spec.heads + spec.kv_heads], axis=1)
        if spec.qk_norm:
            q = rms_norm(q, weights["q_norm.weight"], spec.norm_eps)
            k = rms_norm(k, weights["k_norm.weight"], spec.norm_eps)
        start = 0 if prefix is None else len(prefix.keys)
        theta = spec.local_theta if local else spec.rope_theta
        if theta is not None:
            cosines, sines = rotation(theta, spec.head_size, start + length, spec.rope_factor)
            q = rotate(q, cosines[start:], sines[start:])
            k = rotate(k, cosines[start:], sines[start:])
        attended = self._linear(self._attend(q, k, v, prefix, local, weights), weights, "out")
        if spec.norm_first:
            x = x + (self._norm(attended, weights, "norm3") if spec.post_norms else attended)
            advanced = self._feed_forward(self._norm(x, weights, "norm2"), weights)
            x = x + (self._norm(advanced, weights, "norm4") if spec.post_norms else advanced)
        else:
            x = self._norm(x + attended, weights, "norm1")
            x = self._norm(x + self._feed_forward(x, weights), weights, "norm2")
        return x.astype(self.hidden_dtype), k, v

    def _attend(self, q: Array, k: Array, v: Array, prefix: Prefix | None, local: bool, weights: Weights) -> Array:
        """Attention of q [length, heads, head_size]; returns [length, heads * head_size]."""
        length, heads, size = q.shape
        start = 0
        if prefix is not None:
            start = len(prefix.keys)
            k, v = np.concatenate([prefix.keys, k]), np.concatenate([prefix.values, v])
        groups = heads // k.shape[1]
        k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
        scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) * np.float32(self.spec.scale)
        if self.spec.by_distance:
            scores = scores + distance_bias(self.spec, weights, q, k, 0)
        if self.spec.causal:
            hidden = np.arange(start + length) > start + np.arange(length)[:, None]
            scores = np.where(hidden, np.float32(-np.inf), scores)
        if local:
            apart = np.abs(np.arange(length) - np.arange(length)[:, None])
            scores = np.where(apart > self.spec.window, np.float32(-np.inf), scores)
        context = softmax(scores) @ v.transpose(1, 0, 2)
        rows: Array = context.transpose(1, 0, 2).reshape(length, heads * size)
        return rows

    def _feed_forward(self, x: Array, weights: Weights) -> Array:
        up = self._linear(x, weights, "up")
        activation = ACTIVATIONS[self.spec.activation]
        if self.spec.gated:
            gate, up = np.split(up, 2, axis=-1)
            return self._linear(activation(gate) * up, weights, "down")
        return self._linear(activation(up), weights, "down")

    def _norm(self, x: Array, weights: Weights, name: str) -> Array:
        if self.spec.norm == "rms":
            return rms_norm(x, weights[f"{name}.weight"], self.spec.norm_eps)
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], self.spec.norm_eps)

    def _linear(self, x: Array, weights: Weights, name: str) -> Array:
        weight = weights[f"{name}.weight"]
        if self.spec.precision == "int8":
            quantized, scale = quantize(x)
            y = (quantized @ weight.astype(np.int32)).astype(np.float32) * weights[f"{name}.scale"] * scale
        else:
            y = x @ weight.astype(np.float32)
        return y + weights[f"{name}.bias"] if self.spec.bias else y


def quantize(x: Array) -> tuple[npt.NDArray[np.int32], Array]:
    """Symmetric quantization of every row of x [..., n] to -127 ... 127: integers, and scales [..., 1] with integers *
    scales close to x."""
    maximum = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(1e-30))
    scale = (maximum / np.float32(127)).astype(np.float32)
    return np.rint(x / scale).astype(np.int32), scale


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    deviation: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return x / deviation * weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps) + bias


def softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = powers.sum(axis=-1, keepdims=True)
    return powers / total


def rotate(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotates the pairs (i, i + head_size / 2) of x [length, heads, head_size]."""
    low, high = np.split(x, 2, axis=-1)
    cosines, sines = cosines[:, None, :], sines[:, None, :]
    return np.concatenate([low * cosines - high * sines, high * cosines + low * sines], axis=-1)


def gelu(x: Array) -> Array:
    erf = np.array([math.erf(value) for value in (x / math.sqrt(2)).ravel()], np.float32).reshape(x.shape)
    half: Array = x * np.float32(0.5)
    return half * (1 + erf)


def gelu_tanh(x: Array) -> Array:
    bent: Array = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3))
    half: Array = x * np.float32(0.5)
    return half * (1 + bent)


def silu(x: Array) -> Array:
    # exp of a large positive number overflows to inf, and x / inf is the right limit.
    with np.errstate(over="ignore"):
        denominator: Array = 1 + np.exp(-x)
    return x / denominator


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "silu": silu}
