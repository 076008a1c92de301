"""`NativeRuntime`: layers of int8 encoders in one call to compiled code (`layer.c`), whose intermediates stay in a
thread's cache. Weights are packed for the processor's matrix instructions when a layer is bound."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.runtimes.base import Hidden, HiddenDtype, LayerKernel, Runtime, Weights, physical_cores
from edge.runtimes.native.library import check_array, checked_lengths, native_state, processor_level, usable

THREAD_GROUP = 512
"""Queries, keys and values are in memory for at most this many tokens per thread, or for one longer sequence."""

_GROUPS = 2
"""Groups of tokens in a chunk. Calls for several groups save time between the calls, and larger chunks need memory."""

THREAD_SCRATCH = 1 << 18
"""Bytes per thread: the pages of its stack that it touches, and the delay in the system's count of resident pages."""

MARGIN = 11, 10
"""Safety factor above the sum of the parts. Measured runs took up to 6 % more, with the interpreter's own objects."""

_MATRICES = ("qkv", "out", "up", "down")
_NORMS = ("norm1", "norm2")


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "heads", "size", "inner", "half")),
        ("eps", ctypes.c_double),
    )


class _Weights(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p * len(_MATRICES)) for name in ("weight", "scale", "bias")),
        *((name, ctypes.c_void_p * len(_NORMS)) for name in ("norm_weight", "norm_bias")),
    )


class _BoundLayer(dict[str, npt.NDArray[Any]]):
    """A layer's weights, packed (`packed`, with `pointers`), and `memory` for intermediates of a chunk."""

    def __init__(self, spec: LayerSpec, weights: Weights, packed_nbytes: int) -> None:
        for tensor in spec.tensors():
            check_array(tensor.name, weights[tensor.name], tensor.dtype, *tensor.shape)
        super().__init__(weights)
        self.pointers = _Weights()
        self.packed = np.empty(packed_nbytes, np.uint8)
        self.memory = np.empty(0, np.uint8)
        for i, name in enumerate(_MATRICES):
            self.pointers.weight[i] = weights[f"{name}.weight"].ctypes.data
            self.pointers.scale[i] = weights[f"{name}.scale"].ctypes.data
            self.pointers.bias[i] = weights[f"{name}.bias"].ctypes.data
        for i, name in enumerate(_NORMS):
            self.pointers.norm_weight[i] = weights[f"{name}.weight"].ctypes.data
            self.pointers.norm_bias[i] = weights[f"{name}.bias"].ctypes.data


class NativeRuntime(Runtime):
    """Runs int8 layers of the BERT family (BERT, XLM-RoBERTa) on x86-64 and ARM processors."""

    name = "native"
    compiled_nbytes = 1 << 20  # the threads' stacks and the code's own variables

    def refusal(self, spec: LayerSpec) -> str | None:
        if processor_level() == 0:
            return f"the native runtime cannot be used: {native_state()}"
        plain = spec.bias and not (spec.norm_first or spec.causal or spec.gated or spec.qk_norm or spec.by_distance)
        same_heads = spec.heads == spec.kv_heads and spec.rope_theta is None
        if spec.precision != "int8" or spec.norm != "layer" or spec.activation != "gelu" or not (plain and same_heads):
            return "the native runtime runs int8 encoders of the BERT family only"
        return None

    def layer_kernel(
        self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32"
    ) -> NativeLayerKernel:
        if reason := self.refusal(spec):
            raise CapabilityError(f"{reason}; choose the runtime onnx")
        return NativeLayerKernel(spec, hidden_dtype, threads or physical_cores())


class NativeLayerKernel(LayerKernel):
    """One layer in compiled code; bit for bit the same in every chunk. `level` of None takes the processor's best.
    ValueError for other arrays."""

    def __init__(self, spec: LayerSpec, hidden_dtype: HiddenDtype, threads: int, *, level: int | None = None) -> None:
        code = usable()
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        self.level = processor_level() if level is None else level
        if not 0 < self.level <= processor_level():
            raise ValueError(f"this processor has the levels 1 to {processor_level()}, not {self.level}")
        self._code = code
        self._threads = threads
        self._group = THREAD_GROUP * threads
        self.saturating_tokens = _GROUPS * self._group
        self._lock = threading.Lock()  # a pool serves one run at a time
        self._pool = code.edge_pool_open(threads, self.level)
        if not self._pool:
            raise MemoryError("the system gives no memory for threads")
        # When the process exits, the system ends the threads.
        weakref.finalize(self, code.edge_pool_close, self._pool).atexit = False
        half = int(hidden_dtype == "float16")
        self._shape = _Shape(spec.hidden, spec.heads, spec.head_size, spec.ffn, half, spec.norm_eps)
        self._packed_nbytes = int(code.edge_layer_packed(ctypes.byref(self._shape)))

    def bind(self, weights: Weights) -> Weights:
        bound = _BoundLayer(self.spec, weights, self._packed_nbytes)
        with self._lock:
            self._code.edge_layer_pack(
                self._pool, ctypes.byref(self._shape), ctypes.byref(bound.pointers), bound.packed.ctypes.data
            )
        return bound

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        result = np.empty_like(states)
        self._run(states, result, lengths, weights, prefix)
        return result

    def advance(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> None:
        self._run(states, states, lengths, weights, prefix)

    def _run(
        self, states: Hidden, result: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None
    ) -> None:
        """Runs the layer. The two arrays may be the same: a row is written only after all other reads of it."""
        check_array("states", states, self.hidden_dtype, len(states), self.spec.hidden)
        if prefix is not None or not result.flags.writeable:
            raise ValueError("the layers take no prefix, and the states must be writeable")
        lengths = checked_lengths(lengths, len(states))
        if not len(lengths):
            return
        bound = weights if isinstance(weights, _BoundLayer) else self.bind(weights)
        assert isinstance(bound, _BoundLayer)
        starts = np.empty(len(lengths), np.int64)
        with self._lock:
            needed = self._memory(len(states), int(lengths.max()))
            if len(bound.memory) < needed:
                bound.memory = np.empty(0, np.uint8)  # the old memory is freed first
                bound.memory = np.empty(needed, np.uint8)
            self._code.edge_layer_run(
                self._pool, ctypes.byref(self._shape), ctypes.byref(bound.pointers), bound.packed.ctypes.data,
                states.ctypes.data, result.ctypes.data, lengths.ctypes.data, len(lengths), self._group,
                starts.ctypes.data, bound.memory.ctypes.data,
            )  # fmt: skip

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        row = self.spec.hidden * np.dtype(self.hidden_dtype).itemsize
        # Lengths and starts of the sequences take at most 12 bytes a token.
        layer = self._packed_nbytes + self._memory(tokens, longest)
        total = tokens * (row + 12) + layer + self._threads * THREAD_SCRATCH
        return total * MARGIN[0] // MARGIN[1]

    def _memory(self, tokens: int, longest: int) -> int:
        group = min(tokens, max(self._group, longest))
        return int(self._code.edge_layer_memory(self._pool, ctypes.byref(self._shape), group, longest))
