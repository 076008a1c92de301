"""Sessions of onnxruntime that compute in the caller's memory, and tests of onnxruntime's properties here."""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.runtimes.base import Weights
from edge.runtimes.onnx_graph import Graph
from edge.runtimes.onnx_layer import product_graph
from edge.runtimes.onnx_library import load_onnxruntime

NOTHING = np.empty(0, np.uint8)
"""The scratch memory for a stage that needs none."""

SC_LEVEL2_CACHE_SIZE = 191
"""glibc's number of this `sysconf` name, which Python's table of names lacks."""


class Stage:
    """One compiled graph. It reads inputs and writes outputs in place, without copies.

    Attributes:
        token_bytes: bytes of scratch memory per token, for the intermediates.
        fixed_bytes: additional bytes of scratch memory, for an fp32 copy of a matrix.
    """

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
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._placed = graph.placed
        widths: dict[str, int] = {}
        for value in graph.placed.values():
            widths[value.slot] = max(widths.get(value.slot, 0), value.nbytes)
        # Widths are multiples of 64 bytes per token, so that every slot is aligned to a cache line.
        widths = {slot: -(-width // 64) * 64 for slot, width in widths.items()}
        self._offsets = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
        self.token_bytes = sum(widths.values())
        self._widened = graph.widened
        self.fixed_bytes = max((4 * rows * columns for rows, columns in graph.widened.values()), default=0)

    def run(
        self,
        weights: Weights,
        scratch: npt.NDArray[np.uint8],
        outputs: dict[str, npt.NDArray[Any]],
        **inputs: npt.NDArray[Any],
    ) -> None:
        """Runs the stage on `inputs` and its part of `weights`, and writes to the contiguous arrays `outputs`.

        Args:
            scratch: at least `fixed_bytes`, and `token_bytes` for every token.
        """
        binding = self._session.io_binding()
        for name in self._inputs:
            binding.bind_cpu_input(name, inputs[name] if name in inputs else weights[name])
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        if self._placed:
            tokens, address = len(inputs["hidden"]), scratch.ctypes.data
            assert tokens * self.token_bytes + self.fixed_bytes <= scratch.nbytes
            for name, shape in self._widened.items():
                binding.bind_output(name, "cpu", 0, np.float32, shape, address + self.token_bytes * tokens)
            for name, value in self._placed.items():
                place = address + self._offsets[value.slot] * tokens
                binding.bind_output(name, "cpu", 0, value.dtype, (tokens, *value.shape), place)
        self._session.run_with_iobinding(binding)


def worker_affinities(threads: int) -> str:
    """onnxruntime's list of processors for the workers of a pool; empty if they are not pinned. The caller is the first
    thread and is not in the list.

    The three stages, each with a pool, follow each other hundreds of times per second. Without pinning, the scheduler
    sometimes keeps the workers of two pools on different cores for seconds, and one of these is the core of the caller.
    That costs a third of the speed. A pool that uses all cores of this process is pinned, as onnxruntime does by
    default. A smaller pool is not pinned, so that two processes do not use the same core.
    """
    if not hasattr(os, "sched_getaffinity") or threads < 2:
        return ""
    allowed = sorted(os.sched_getaffinity(0))
    return ";".join(str(processor + 1) for processor in allowed[1:]) if threads == len(allowed) else ""


@cache
def product_saturates() -> bool:
    """Whether products of unsigned and signed bytes overflow the 16-bit sums of the processor's instruction."""
    stage = Stage(product_graph(), 1)
    a, b = np.full((16, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    product = np.empty((16, 32), np.float32)
    stage.run({}, NOTHING, {"product": product}, a=a, b=b, scale=np.ones(32, np.float32))
    return bool((product != (255 - 128) * 127 * 64).any())


def has_flash_attention() -> bool:
    """Whether onnxruntime uses flash attention. It does if it knows the size of the second-level cache, which some
    Linux systems do not report."""
    if os.environ.get("ORT_DISABLE_FLASH_ATTENTION", "0") != "0":
        return False
    if sys.platform != "linux":
        return True
    try:
        return os.sysconf(SC_LEVEL2_CACHE_SIZE) > 0
    except (OSError, ValueError):
        return False
