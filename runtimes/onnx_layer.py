"""One transformer layer as ONNX graphs whose large intermediates are outputs in memory that the caller provides:
onnxruntime's elementwise operators never work in place. Only here onnxruntime (telemetry off) and `onnx` are
imported."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge import REPORTS_OFF
from edge.models.spec import LayerSpec

if TYPE_CHECKING:
    from edge.runtimes.base import HiddenDtype

OPSET = 21
IR_VERSION = 10
CONTRIB = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Placed:
    """An intermediate value that is placed in a slot. `shape` is the shape of one token's part."""

    slot: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes per token."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Graph:
    """Collects one ONNX graph. The caller provides memory for the values `placed`, and for converted copies of
    matrices, one at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.placed: dict[str, Placed] = {}
        self.converted: dict[str, tuple[tuple[int, int], str]] = {}
        self._nodes: list[Any] = []
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []
        self._constants: dict[str, Any] = {}

    def input(self, name: str, dtype: str, shape: tuple[int | str, ...]) -> str:
        """Declares a graph input. A string in `shape` is a dimension that varies between calls."""
        self._inputs[name] = _value(name, dtype, shape)
        return name

    def output(self, value: str, name: str, dtype: str, shape: tuple[int | str, ...]) -> None:
        """Gives a node's result a name, and declares it a graph output."""
        for node in self._nodes:
            node.output[:] = [name if produced == value else produced for produced in node.output]
            node.input[:] = [name if consumed == value else consumed for consumed in node.input]
        self._outputs.append(_value(name, dtype, shape))

    def place(self, value: str, slot: str, *shape: int, dtype: str = "float32") -> str:
        """Places a node's result [t, *shape] in a slot of the caller's buffer."""
        self.placed[value] = Placed(slot, shape, dtype)
        self._outputs.append(_value(value, dtype, ("t", *shape)))
        return value

    def constant(self, array: npt.ArrayLike, dtype: str) -> str:
        from onnx import numpy_helper

        value = np.asarray(array, dtype)
        name = f"constant_{value.dtype.name}_{value.tolist()}"
        self._constants[name] = numpy_helper.from_array(value, name)
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        return self.op_many(kind, 1, *inputs, domain=domain, **attributes)[0]

    def op_many(self, kind: str, outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        from onnx import helper

        names = [f"{kind}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def serialize(self) -> bytes:
        from onnx import helper

        inputs, constants = list(self._inputs.values()), list(self._constants.values())
        graph = helper.make_graph(self._nodes, self.name, inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()
        return data


def element_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _value(name: str, dtype: str, shape: tuple[int | str, ...]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def tensor(array: npt.NDArray[Any]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


def load_onnxruntime() -> Any:
    """The module `onnxruntime`, with its telemetry off."""
    os.environ.update(REPORTS_OFF)  # onnxruntime reads the environment once, at its import
    import onnxruntime

    # The variable has no effect on Windows, or if the caller's program has already imported the library.
    onnxruntime.disable_telemetry_events()
    return onnxruntime


BLOCK_VALUES = 5 * 2**19
"""Largest number of outputs of the widest matrix per block of tokens: 10 MiB, 640 tokens for a feed-forward width of
4096. Measured on two Zen 4 cores."""

QUERIES = 128
"""Largest number of query tokens in a block of attention. A causal block skips the keys after its end."""

SCORES = 2**21
"""Approximate number of attention scores in such a block: 8 MiB. So long sequences get blocks of fewer queries."""

THREAD_SCRATCH = 3 * 2**20
"""Upper bound on onnxruntime's bytes per thread, for packed pieces of matrices and tiles of flash attention."""

MARGIN = 11, 10
"""Safety factor above the sum of the parts, which was 1 % too low on one machine."""

_ZERO = 128
"""The unsigned byte that stands for 0. Signed bytes become such bytes with their highest bit inverted."""

SMALLEST_MAXIMUM = 1e-30
"""Replaces the maximum of a row of zeros. Such a row is quantized to zeros with any scale."""


def fuses_attention(spec: LayerSpec, flash: bool) -> bool:
    """Whether a layer's attention is one operator (`LayerGraphs.fused_attention`)."""
    return flash and not spec.causal and not spec.by_distance and spec.heads == spec.kv_heads


class LayerGraphs:
    """Builds the stages of one layer.

    If the processor's product of bytes `saturates`, both factors are unsigned, around 128. `flash`: MultiHeadAttention
    without a mask holds no scores (Dao et al. 2022). `fused_attention`: `attend` is one such operator over whole
    sequences, else over blocks of queries."""

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype, saturates: bool, flash: bool) -> None:
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self.saturates = saturates
        self.fused_attention = fuses_attention(spec, flash)
        self._tensors = {tensor.name: tensor for tensor in spec.tensors()}

    def project(self, *, norm_input: bool = True) -> Graph:
        """hidden [t, hidden] -> q [t, 1, heads * head_size], k and v [t, 1, kv_heads * head_size], rotated, normed."""
        spec = self.spec
        g = Graph("project")
        x = self._hidden(g)
        if spec.norm_first and norm_input:
            x = g.place(self._norm(g, x, "norm1"), "normed", spec.hidden)
        sizes = [spec.heads * spec.head_size, *[spec.kv_heads * spec.head_size] * 2]
        qkv = self._linear(g, x, "qkv", "wide")
        qkv = g.op("Unsqueeze", qkv, g.constant([1], "int64"))
        parts = g.op_many("Split", 3, qkv, g.constant(sizes, "int64"), axis=-1)
        for name, value, size in zip("qkv", parts, sizes, strict=True):
            rotated = name != "v" and spec.rope_theta is not None
            if name != "v" and spec.qk_norm:
                g.place(value, f"{name}_part", 1, size)
                heads = (size // spec.head_size, spec.head_size)
                value = g.op("Reshape", value, g.constant([-1, *heads], "int64"))
                weight = self._weight(g, f"{name}_norm.weight")
                value = g.op("SimplifiedLayerNormalization", value, weight, axis=-1, epsilon=spec.norm_eps)
                g.place(value, f"{name}_normed", *heads)
                value = g.op("Reshape", value, g.constant([-1, 1, size], "int64"))
            elif rotated:
                g.place(value, f"{name}_part", 1, size)
            if rotated:
                value = self._rotate(g, value, size)
            g.output(value, name, "float32", ("t", 1, size))
        return g

    def attend(self, *, local: bool = False) -> Graph:
        """Attention of b sequences of l tokens (`fused_attention`), or of a block of m queries to e keys, whose
        `scores`, `masked` and `probabilities` may be the same memory."""
        spec = self.spec
        heads, groups, size = spec.kv_heads, spec.heads // spec.kv_heads, spec.head_size
        g = Graph("attend")
        if self.fused_attention and not local:
            shape: tuple[int | str, ...] = ("b", "l", heads * size)
            values = [g.input(name, "float32", shape) for name in "qkv"]
            context = g.op("MultiHeadAttention", *values, domain=CONTRIB, num_heads=heads)
            g.output(context, "context", "float32", shape)
            return g
        q = g.input("q", "float32", ("m", heads, groups, size))
        k = g.input("k", "float32", ("e", heads, size))
        v = g.input("v", "float32", ("e", heads, size))
        # The query heads that share a key head become one matrix of groups * m rows. So each key head is used in one
        # product, and is not repeated in memory.
        q = g.op("Transpose", q, perm=[1, 2, 0, 3])
        q = g.op("Reshape", q, g.constant([heads, -1, size], "int64"))
        by_head: dict[str, Any] = {"domain": CONTRIB, "transBatchB": 1}
        scores = g.op("FusedMatMul", q, k, alpha=spec.scale, transB=1, **by_head)
        g.output(scores, "scores", "float32", (heads, "r", "e"))
        scores = "scores"
        if spec.causal or local or spec.by_distance:
            shared: tuple[int | str, ...] = (heads, groups) if spec.by_distance else (1, 1)
            mask = g.input("mask", "float32", (*shared, "m", "e"))
            shape_of_mask = g.op("Slice", g.op("Shape", mask), g.constant([2], "int64"), g.constant([4], "int64"))
            apart = g.op("Concat", g.constant([heads, groups], "int64"), shape_of_mask, axis=0)
            masked = g.op("Add", g.op("Reshape", scores, apart), mask)
            g.output(masked, "masked", "float32", (heads, groups, "m", "e"))
            columns = g.op("Gather", shape_of_mask, g.constant([1], "int64"), axis=0)
            together = g.op("Concat", g.constant([heads, -1], "int64"), columns, axis=0)
            scores = g.op("Reshape", "masked", together)
        g.output(g.op("Softmax", scores, axis=-1), "probabilities", "float32", (heads, "r", "e"))
        context = g.op("FusedMatMul", "probabilities", v, **by_head)
        context = g.op("Reshape", context, g.constant([heads, groups, -1, size], "int64"))
        context = g.op("Transpose", context, perm=[2, 0, 1, 3])
        g.output(context, "context", "float32", ("m", heads, groups, size))
        return g

    def finish(self) -> Graph:
        spec = self.spec
        g = Graph("finish")
        x = self._hidden(g)
        context = g.input("context", "float32", ("t", spec.heads * spec.head_size))
        attended = self._linear(g, context, "out", "attended")
        if spec.post_norms:
            attended = g.place(self._norm(g, attended, "norm3"), "normed", spec.hidden)
        attended = g.place(g.op("Add", attended, x), "attended", spec.hidden)
        normed = self._norm(g, attended, "norm2" if spec.norm_first else "norm1")
        g.place(normed, "normed", spec.hidden)
        up = self._linear(g, normed, "up", "wide")
        if spec.gated:
            gate, up = g.op_many("Split", 2, up, g.constant([spec.ffn, spec.ffn], "int64"), axis=-1)
            g.place(gate, "inner", spec.ffn)
            g.place(up, "gated", spec.ffn)
            inner = g.place(self._activation(g, gate), "wide", spec.ffn)
            inner = g.place(g.op("Mul", inner, up), "wide", spec.ffn)
        else:
            inner = g.place(self._activation(g, up), "inner", spec.ffn)
        down_slot = "inner" if spec.gated else "wide"
        down = self._linear(g, inner, "down", down_slot)
        if spec.post_norms:
            down = g.place(self._norm(g, down, "norm4"), "normed", spec.hidden)
        result = g.op("Add", down, attended if spec.norm_first else normed)
        if not spec.norm_first:
            result = self._norm(g, g.place(result, down_slot, spec.hidden), "norm2")
        if self.hidden_dtype == "float16":
            result = g.op("Cast", g.place(result, "attended", spec.hidden), to=element_type("float16"))
        g.output(result, "advanced", self.hidden_dtype, ("t", spec.hidden))
        return g

    def _hidden(self, g: Graph) -> str:
        hidden = g.input("hidden", self.hidden_dtype, ("t", self.spec.hidden))
        if self.hidden_dtype == "float32":
            return hidden
        return g.place(g.op("Cast", hidden, to=element_type("float32")), "hidden", self.spec.hidden)

    def _weight(self, g: Graph, name: str) -> str:
        tensor = self._tensors[name]
        unsigned = self.saturates and tensor.dtype == "int8"
        return g.input(name, "uint8" if unsigned else tensor.dtype, tensor.shape)

    def _linear(self, g: Graph, x: str, name: str, slot: str) -> str:
        """x @ w + bias, placed in `slot`, which must not hold x."""
        weight = self._weight(g, f"{name}.weight")
        rows, columns = self.spec.matrices()[name]
        if self.spec.precision == "int8":
            quantized, zero, row_scale = self._quantize(g, x, rows)
            one, column_scale = g.constant(1.0, "float32"), self._weight(g, f"{name}.scale")
            factors = [quantized, weight, one, column_scale, zero]
            if self.saturates:
                factors[1] = self._converted(g, weight, (rows, columns), x, "uint8")
                factors.append(zero)
            y = g.op("MatMulIntegerToFloat", *factors, domain=CONTRIB)
            y = g.op("Mul", g.place(y, slot, columns), row_scale)
        else:
            if self.spec.precision == "fp16":
                weight = self._converted(g, weight, (rows, columns), x, "float32")
            y = g.op("MatMul", x, weight)
        g.place(y, slot, columns)
        if self.spec.bias:
            y = g.place(g.op("Add", y, self._weight(g, f"{name}.bias")), slot, columns)
        return y

    def _converted(self, g: Graph, weight: str, shape: tuple[int, int], x: str, dtype: str) -> str:
        """A matrix converted to fp32, or to unsigned bytes around 128. It depends on the shape of x, so it runs only
        when the previous matrix is no longer needed."""
        size = g.op("Shape", x)
        zero = g.op("Sub", size, size)
        weight = g.op("Reshape", weight, g.op("Add", g.constant(shape, "int64"), zero))
        if dtype == "uint8":
            weight = g.op("BitwiseXor", weight, g.constant(_ZERO, "uint8"))
        else:
            weight = g.op("Cast", weight, to=element_type(dtype))
        g.converted[weight] = shape, dtype
        g.output(weight, weight, dtype, shape)
        return weight

    def _quantize(self, g: Graph, x: str, columns: int) -> tuple[str, str, str]:
        """Per-token quantization. Returns unsigned values around a zero point, the zero point, and scales [t, 1]."""
        last = g.constant([-1], "int64")
        highest = g.op("ReduceMax", x, last, keepdims=1)
        lowest = g.op("ReduceMin", x, last, keepdims=1)
        maximum = g.op("Max", highest, g.op("Neg", lowest), g.constant(SMALLEST_MAXIMUM, "float32"))
        scale = g.op("Div", maximum, g.constant(_ZERO - 1, "float32"))
        per_row = g.op("Reshape", scale, last)
        # With one scale per row the operator requires one zero point per row.
        zeros = g.op("ConstantOfShape", g.op("Shape", per_row), value=tensor(np.array([_ZERO], np.uint8)))
        quantized = g.place(g.op("QuantizeLinear", x, per_row, zeros, axis=0), "quantized", columns, dtype="uint8")
        return quantized, g.constant(_ZERO, "uint8"), scale

    def _norm(self, g: Graph, x: str, name: str) -> str:
        """The norm of x as an operator of its own: with a sum, a fifth of SkipLayerNormalization's time."""
        weight = self._weight(g, f"{name}.weight")
        if self.spec.norm == "rms":
            return g.op("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=self.spec.norm_eps)
        bias = self._weight(g, f"{name}.bias")
        return g.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=self.spec.norm_eps)

    def _activation(self, g: Graph, x: str) -> str:
        activation = self.spec.activation
        if activation == "silu":
            return g.op("QuickGelu", x, domain=CONTRIB, alpha=1.0)
        if activation == "relu":
            return g.op("Relu", x)
        return g.op("Gelu", x, approximate="tanh" if activation == "gelu_tanh" else "none")

    def _rotate(self, g: Graph, x: str, size: int) -> str:
        """Rotary embedding of x [t, 1, size], where every row is a sequence of one token."""
        positions = g.input("positions", "int64", ("t", 1))
        half = self.spec.head_size // 2
        cosines = g.input("cosines", "float32", ("p", half))
        sines = g.input("sines", "float32", ("p", half))
        heads = size // self.spec.head_size
        return g.op("RotaryEmbedding", x, positions, cosines, sines, domain=CONTRIB, num_heads=heads)


def product_graph() -> Graph:
    """A test graph: a [16, 64] unsigned bytes times b [64, 32] signed bytes, with the operator of `LayerGraphs`."""
    g = Graph("product")
    a, b = g.input("a", "uint8", (16, 64)), g.input("b", "int8", (64, 32))
    one, zero = g.constant(1.0, "float32"), g.constant(_ZERO, "uint8")
    product = g.op("MatMulIntegerToFloat", a, b, one, g.input("scale", "float32", (32,)), zero, domain=CONTRIB)
    g.output(product, "product", "float32", (16, 32))
    return g


def workspace(
    spec: LayerSpec,
    hidden_dtype: HiddenDtype,
    threads: int,
    tokens: int,
    longest: int,
    prefix: int,
    *,
    token_bytes: int,
    fixed_bytes: int,
    fused: bool,
) -> int:
    """See `LayerKernel.workspace`. `token_bytes` and `fixed_bytes` are those of a `CompiledGraph`."""
    queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    row = spec.hidden * np.dtype(hidden_dtype).itemsize
    group = min(tokens, max(longest, block_tokens(spec)))
    total = prefix + longest
    held = tokens * row + 4 * group * 2 * (queries + keys)
    held += scratch_bytes(spec, group, total, token_bytes, fixed_bytes, fused)
    attend = 4 * group * 3 * queries if fused else 0
    if not fused or spec.window:
        # Local blocks have more queries than global ones, and fewer keys.
        rows = min(longest, QUERIES if spec.window else query_tokens(spec, total))
        attend = max(attend, 4 * rows * (3 * queries + total) + 8 * keys * total * bool(prefix))
        if spec.by_distance:
            attend += (4 * spec.heads + 16) * rows * total + 8 * (spec.heads + 4) * total
        if spec.spans:
            attend += 4 * spec.heads * (rows * total + 2 * (rows + total) * spec.spans) + 16 * spec.spans * queries
    if spec.rope_theta is not None:
        held += 16 * total * spec.head_size * (2 if spec.window else 1)
    return (held + attend + threads * THREAD_SCRATCH) * MARGIN[0] // MARGIN[1]


def scratch_bytes(spec: LayerSpec, tokens: int, keys: int, token_bytes: int, fixed_bytes: int, fused: bool) -> int:
    scores = 0 if fused and not spec.window else min(QUERIES * spec.heads * keys, max(SCORES, 16 * spec.heads * keys))
    return max(min(tokens, block_tokens(spec)) * token_bytes + fixed_bytes, 4 * scores)


def scratch_bound(spec: LayerSpec) -> tuple[int, int]:
    """Upper bounds on `token_bytes` and `fixed_bytes` of the layer's stages, without building their graphs."""
    matrices = spec.matrices()
    (_, qkv), (_, up) = matrices["qkv"], matrices["up"]
    rows = 3 * 4 * spec.hidden + max(4 * spec.hidden, up)
    size = {"fp32": 0, "fp16": 4, "int8": 1}[spec.precision]
    converted = size * max(rows * columns for rows, columns in matrices.values())
    return max(2 * 4 * up, 3 * 4 * qkv) + rows + 256, converted


@cache
def block_tokens(spec: LayerSpec) -> int:
    """Number of tokens in a block of `project` and `finish`."""
    return max(256, BLOCK_VALUES // max(columns for _, columns in spec.matrices().values()))


def query_tokens(spec: LayerSpec, keys: int) -> int:
    """Number of query tokens in a block of attention to `keys` keys."""
    return max(16, min(QUERIES, SCORES // (spec.heads * keys)))
