"""`OnnxRuntime`: transformer layers on onnxruntime's CPU provider.

A layer runs in three small sessions: `project` (norm, q, k, v), `attend` (one sequence after the other), `finish`
(output projection, residuals, norms, feed-forward); the first and last work on blocks of rows just large enough to
saturate the cores."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.runtimes.base import (
    Hidden,
    HiddenDtype,
    LayerKernel,
    Prefix,
    Runtime,
    Weights,
    distance_bias,
    physical_cores,
    rotation,
    runs,
)
from edge.runtimes.onnx_layer import (
    QUERIES,
    Graph,
    LayerGraphs,
    block_tokens,
    fuses_attention,
    load_onnxruntime,
    product_graph,
    query_tokens,
    scratch_bound,
    scratch_bytes,
    workspace,
)

MOST_SATURATING = 2048
"""Largest chunk, in tokens, of narrow layers, whose blocks hold more."""

NOTHING = np.empty(0, np.uint8)
"""The scratch memory for a stage that needs none."""

SC_LEVEL2_CACHE_SIZE = 191
"""glibc's number of this `sysconf` name, which Python's table of names lacks."""


class CompiledGraph:
    """One compiled graph, which reads and writes in place. Its intermediates take `token_bytes` per token, and a
    converted matrix `fixed_bytes`."""

    def __init__(self, graph: Graph, threads: int) -> None:
        onnxruntime = load_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        # The graphs are already in the form in which they should run, with slots. Extended fusions would change them.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        # Every session has its own threads. Threads that kept spinning would take the cores from the next stage.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if affinities := worker_affinities(threads):
            options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        self._session: Any = onnxruntime.InferenceSession(
            graph.serialize(), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {value.name: value.type for value in self._session.get_inputs()}
        self._placed = graph.placed
        widths: dict[str, int] = {}
        for value in graph.placed.values():
            widths[value.slot] = max(widths.get(value.slot, 0), value.nbytes)
        # Widths are multiples of 64 bytes per token, so that every slot is aligned to a cache line.
        widths = {slot: -(-width // 64) * 64 for slot, width in widths.items()}
        self._offsets = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
        self.token_bytes = sum(widths.values())
        self._converted = graph.converted
        sizes = (math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in graph.converted.values())
        self.fixed_bytes = max(sizes, default=0)

    def run(
        self,
        weights: Weights,
        scratch: npt.NDArray[np.uint8],
        outputs: dict[str, npt.NDArray[Any]],
        **inputs: npt.NDArray[Any],
    ) -> None:
        """Runs the stage on `inputs` and its part of `weights`, into the contiguous arrays `outputs`."""
        binding = self._session.io_binding()
        for name, kind in self._inputs.items():
            array = inputs[name] if name in inputs else weights[name]
            binding.bind_cpu_input(name, array.view(np.uint8) if kind == "tensor(uint8)" else array)
        for name, array in outputs.items():
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"{name} must be writeable and without gaps")
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        if self._placed:
            tokens, address = len(inputs["hidden"]), scratch.ctypes.data
            if tokens * self.token_bytes + self.fixed_bytes > scratch.nbytes:
                raise ValueError(f"{tokens} tokens do not fit {scratch.nbytes:,} bytes of scratch memory")
            for name, (shape, dtype) in self._converted.items():
                binding.bind_output(name, "cpu", 0, dtype, shape, address + self.token_bytes * tokens)
            for name, value in self._placed.items():
                place = address + self._offsets[value.slot] * tokens
                binding.bind_output(name, "cpu", 0, value.dtype, (tokens, *value.shape), place)
        self._session.run_with_iobinding(binding)


def worker_affinities(threads: int) -> str:
    """onnxruntime's list of processors for the workers of a pool, without the caller; empty if they are not pinned.

    Unpinned, workers of two pools sometimes stay on different cores, which costs a third of the speed. A pool smaller
    than the process's cores is not pinned, so that two processes do not use the same core."""
    if not hasattr(os, "sched_getaffinity") or threads < 2:
        return ""
    allowed = sorted(os.sched_getaffinity(0))
    return ";".join(str(processor + 1) for processor in allowed[1:]) if threads == len(allowed) else ""


@cache
def product_saturates() -> bool:
    """Whether products of unsigned and signed bytes overflow the 16-bit sums of the processor's instruction."""
    stage = CompiledGraph(product_graph(), 1)
    a, b = np.full((16, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    product = np.empty((16, 32), np.float32)
    stage.run({}, NOTHING, {"product": product}, a=a, b=b, scale=np.ones(32, np.float32))
    return bool((product != (255 - 128) * 127 * 64).any())


def has_flash_attention() -> bool:
    """Whether onnxruntime uses flash attention: it must know the size of the second-level cache."""
    if os.environ.get("ORT_DISABLE_FLASH_ATTENTION", "0") != "0":
        return False
    if sys.platform != "linux":
        return True
    try:
        return os.sysconf(SC_LEVEL2_CACHE_SIZE) > 0
    except (OSError, ValueError):
        return False


Array = npt.NDArray[np.float32]


class OnnxRuntime(Runtime):
    """Runs every `LayerSpec` with onnxruntime >= 1.20 on the CPU."""

    name = "onnx"
    libraries = ("onnx", "onnxruntime")
    compiled_nbytes = 4 << 20  # three sessions with two threads took 2.2 to 3.3 MB

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        per_token, fixed = scratch_bound(spec)
        fused = fuses_attention(spec, has_flash_attention())

        def bound(tokens: int, longest: int, prefix: int) -> int:
            return workspace(
                spec, hidden_dtype, threads or physical_cores(), tokens, longest, prefix,
                token_bytes=per_token, fixed_bytes=fixed, fused=fused,
            )  # fmt: skip

        return bound

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> OnnxLayerKernel:
        try:
            import onnx  # noqa: F401

            load_onnxruntime()
        except ImportError as error:
            raise CapabilityError(f"the onnx runtime needs {error.name}: pip install onnxruntime onnx") from error
        return OnnxLayerKernel(spec, hidden_dtype, threads or physical_cores())


@dataclass(frozen=True, slots=True)
class WorkMemory:
    """The work memory of a run: q and context [tokens, kv_heads, heads / kv_heads, head_size], k and v [tokens,
    kv_heads, head_size], and slots of intermediates."""

    q: Array
    k: Array
    v: Array
    context: Array
    scratch: npt.NDArray[np.uint8]


class OnnxLayerKernel(LayerKernel):
    """One layer on onnxruntime. `saturates`: the processor's product of bytes does; None tests it."""

    def __init__(
        self,
        spec: LayerSpec,
        hidden_dtype: HiddenDtype,
        threads: int,
        *,
        saturates: bool | None = None,
        flash: bool | None = None,
    ) -> None:
        self.spec = spec
        self.hidden_dtype = hidden_dtype
        if saturates is None:
            saturates = spec.precision == "int8" and product_saturates()
        graphs = LayerGraphs(spec, hidden_dtype, saturates, has_flash_attention() if flash is None else flash)
        self._threads = threads
        self._fused_attention = graphs.fused_attention
        self._project = CompiledGraph(graphs.project(), threads)
        self._attend = CompiledGraph(graphs.attend(), threads)
        if spec.window:
            self._project_plain = CompiledGraph(graphs.project(norm_input=False), threads)
            self._attend_local = CompiledGraph(graphs.attend(local=True), threads)
        self._finish = CompiledGraph(graphs.finish(), threads)
        self._tokens = block_tokens(spec)
        # Other products than those of integers gain from several blocks.
        self.saturating_tokens = min(MOST_SATURATING, max(self._tokens, 0 if spec.precision == "int8" else 1024))
        self._token_bytes = max(self._project.token_bytes, self._finish.token_bytes)
        self._fixed_bytes = max(self._project.fixed_bytes, self._finish.fixed_bytes)
        self._angles: dict[float, tuple[Array, Array]] = {}
        self._triangle = np.triu(np.full((QUERIES,) * 2, -np.inf, np.float32), 1)

    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        if not (prefix is None or (isinstance(prefix, Prefix) and self.spec.causal)):
            raise ValueError("only a causal layer takes a prefix, which its own `run_prefix` has returned")
        result = np.empty_like(states)
        cuts = list(groups(lengths, self._tokens))
        most = max((int(lengths[first:last].sum()) for first, last in cuts), default=0)
        memory = self._memory(most, int(lengths.max(initial=1)) + (0 if prefix is None else len(prefix.keys)))
        start = 0
        for first, last in cuts:
            stop = start + int(lengths[first:last].sum())
            self._advance(states[start:stop], result[start:stop], lengths[first:last], weights, prefix, memory)
            start = stop
        return result

    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, Prefix]:
        if not self.spec.causal:
            raise CapabilityError("only a causal layer has a prefix that does not depend on what follows it")
        result = np.empty_like(states)
        memory = self._memory(len(states), len(states))
        self._advance(states, result, np.array([len(states)], np.int32), weights, None, memory)
        return result, Prefix(memory.k.copy(), memory.v.copy())

    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        return workspace(
            self.spec, self.hidden_dtype, self._threads, tokens, longest, prefix,
            token_bytes=self._token_bytes, fixed_bytes=self._fixed_bytes, fused=self._fused_attention,
        )  # fmt: skip

    def _memory(self, tokens: int, keys: int) -> WorkMemory:
        spec = self.spec
        by_query = (tokens, spec.kv_heads, spec.heads // spec.kv_heads, spec.head_size)
        by_key = (tokens, spec.kv_heads, spec.head_size)
        q, k, v, context = (np.empty(shape, np.float32) for shape in (by_query, by_key, by_key, by_query))
        scratch = scratch_bytes(spec, tokens, keys, self._token_bytes, self._fixed_bytes, self._fused_attention)
        return WorkMemory(q, k, v, context, np.empty(scratch, np.uint8))

    def _advance(
        self,
        rows: Hidden,
        advanced: Hidden,
        lengths: npt.NDArray[np.int32],
        weights: Weights,
        prefix: Prefix | None,
        memory: WorkMemory,
    ) -> None:
        spec, tokens = self.spec, len(rows)
        q, k, v, context = memory.q[:tokens], memory.k[:tokens], memory.v[:tokens], memory.context[:tokens]
        extra: dict[str, npt.NDArray[Any]] = {}
        local, norm_input = spec.kind(weights)
        theta = spec.local_theta if local else spec.rope_theta
        if theta is not None:
            offset = 0 if prefix is None else len(prefix.keys)
            positions = np.concatenate([np.arange(offset, offset + n, dtype=np.int64) for n in lengths])
            end = offset + int(lengths.max())
            if theta not in self._angles or len(self._angles[theta][0]) < end:
                self._angles[theta] = rotation(theta, spec.head_size, end, spec.rope_factor)
            extra["cosines"], extra["sines"] = self._angles[theta]
        project = self._project if norm_input else self._project_plain
        for start, stop in blocks(tokens, self._tokens):
            if theta is not None:
                extra["positions"] = positions[start:stop, None]
            outputs = {name: x[start:stop].reshape(stop - start, 1, -1) for name, x in (("q", q), ("k", k), ("v", v))}
            project.run(weights, memory.scratch, outputs, hidden=rows[start:stop], **extra)
        self._attention(q, k, v, context, lengths, prefix, memory.scratch, local, weights)
        for start, stop in blocks(tokens, self._tokens):
            inputs = {"hidden": rows[start:stop], "context": context[start:stop].reshape(stop - start, -1)}
            self._finish.run(weights, memory.scratch, {"advanced": advanced[start:stop]}, **inputs)

    def _attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        context: Array,
        lengths: npt.NDArray[np.int32],
        prefix: Prefix | None,
        scratch: npt.NDArray[np.uint8],
        local: bool,
        weights: Weights,
    ) -> None:
        start = 0
        if self._fused_attention and not local:
            for count, n in runs(lengths):
                stop = start + count * n
                parts = {"q": q, "k": k, "v": v, "context": context}
                views = {name: x[start:stop].reshape(count, n, -1) for name, x in parts.items()}
                self._attend.run({}, NOTHING, {"context": views.pop("context")}, **views)
                start = stop
            return
        shared = 0
        if prefix is not None:
            # All sequences use one pair of buffers. The prefix stays in it, followed by each sequence's part in turn.
            shared = len(prefix.keys)
            keys = np.empty((shared + int(lengths.max()), *k.shape[1:]), np.float32)
            values = np.empty_like(keys)
            keys[:shared], values[:shared] = prefix.keys, prefix.values
        for n in map(int, lengths):
            stop = start + n
            own_keys, own_values = k[start:stop], v[start:stop]
            if prefix is not None:
                keys[shared : shared + n], values[shared : shared + n] = own_keys, own_values
                own_keys, own_values = keys[: shared + n], values[: shared + n]
            self._attend_sequence(q[start:stop], own_keys, own_values, context[start:stop], scratch, local, weights)
            start = stop

    def _attend_sequence(
        self,
        q: Array,
        k: Array,
        v: Array,
        context: Array,
        scratch: npt.NDArray[np.uint8],
        local: bool,
        weights: Weights,
    ) -> None:
        """Attention of one sequence, block by block. The queries belong to the last tokens of the keys. The keys of a
        `local` block are those in the windows of its queries."""
        spec, shared, near = self.spec, len(k) - len(q), self.spec.window if local else len(k)
        attend = self._attend_local if local else self._attend
        for start, stop in blocks(len(q), query_tokens(spec, min(len(k), QUERIES + 2 * near))):
            low, end = max(0, start - near), min(len(k), stop + near) if local or not spec.causal else shared + stop
            rows, width = stop - start, end - low
            inputs: dict[str, npt.NDArray[Any]] = {"q": q[start:stop], "k": k[low:end], "v": v[low:end]}
            scores = scratch.view(np.float32)[: spec.heads * rows * width].reshape(spec.kv_heads, -1, width)
            outputs = {"scores": scores, "probabilities": scores, "context": context[start:stop]}
            if local:
                apart = np.abs(np.arange(start, stop)[:, None] - np.arange(low, end))
                inputs["mask"] = np.where(apart > near, np.float32(-np.inf), np.float32(0))[None, None]
            elif spec.by_distance:
                bias = distance_bias(spec, weights, q[start:stop].reshape(rows, -1, spec.head_size), k, start)
                inputs["mask"] = bias.reshape(spec.kv_heads, -1, rows, width)
            elif spec.causal:
                inputs["mask"] = np.zeros((1, 1, rows, width), np.float32)
                inputs["mask"][..., width - rows :] = self._triangle[:rows, :rows]
            if "mask" in inputs:
                outputs["masked"] = scores.reshape(spec.kv_heads, -1, rows, width)
            attend.run({}, NOTHING, outputs, **inputs)


def blocks(total: int, most: int) -> Iterator[tuple[int, int]]:
    parts = -(-total // most)
    for part in range(parts):
        yield total * part // parts, total * (part + 1) // parts


def groups(lengths: npt.NDArray[np.int32], most: int) -> Iterator[tuple[int, int]]:
    """Cuts a chunk into groups of neighbours of about equal size, at most `most` tokens or one sequence."""
    total = int(lengths.sum())
    goal = total / max(1, -(-total // most))
    start = tokens = 0
    for stop, n in enumerate(map(int, lengths)):
        if tokens >= goal or (tokens and tokens + n > most):
            yield start, stop
            start, tokens = stop, 0
        tokens += n
    if tokens:
        yield start, len(lengths)
