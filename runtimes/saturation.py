"""The number of tokens in a chunk that saturates the cores, measured once per kernel and stored on the device."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import platformdirs

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.files.sealed import recall, remember
from edge.resident import trim_heap
from edge.runtimes.base import LayerKernel, physical_cores

_SIZES = (128, 256, 512, 1024, 2048)
_ENOUGH = 0.97
"""A chunk size saturates the cores if it reaches this share of the best measured throughput."""

_SEQUENCE = 100
"""Tokens per sequence in the measurement. Attention over so few tokens is a small part of the work. As in a pass, a
chunk has as many whole sequences as fit, so that it does not fill the last block of a kernel."""

_ROUNDS = 5
"""Number of runs of each size. The sizes take turns, so that other load on the machine does not slow a single size."""

_STEADY = 1.25
"""A measurement is disturbed if the slowest run of the chosen size takes more than this multiple of the fastest."""

_WORKING = 0.8
"""A measurement is disturbed if the threads worked for less than this share of its time, because another process had a
core. On one core the smallest chunks are as fast as large ones, and this choice would slow later passes by a third."""

_TRIES = 5
"""A disturbed measurement is used in this process only, and the next process measures again. After this number of them
the machine is taken to be like that, and the largest of their results is stored."""

_METHOD = 3
"""The number of this measurement's method. Results of other methods are ignored."""

_disturbed: dict[str, int] = {}
"""The results of this process's disturbed measurements, by the key of the stored ones."""


def saturating_tokens(kernel: LayerKernel, runtime: str, threads: int, budget: MemoryBudget, spared: int = 0) -> int:
    """The smallest chunk size, in tokens, with 97 % of the best throughput of this kernel on this device.

    Args:
        budget: the budget for the measurement's memory. Only sizes that fit are measured. If none fits, the smallest
            size is returned without a measurement.
        spared: bytes of free memory that the measurement leaves unused.
    """
    room = budget.free - spared
    sizes = [size for size in _SIZES if _nbytes(kernel, size) <= room]
    if not sizes:
        return _SIZES[0]
    subject = (_METHOD, runtime, threads, os.cpu_count(), kernel.spec, kernel.hidden_dtype, sizes)
    key = hashlib.sha256(repr(subject).encode()).hexdigest()[:16]
    path = Path(platformdirs.user_cache_dir("edge-rag", appauthor=False)) / "saturation.json"
    if key in _disturbed:
        return _disturbed[key]
    known = recall(path, "the measured chunk sizes")
    if isinstance(known.get(key), int) and known[key] in _SIZES:
        return int(known[key])
    try:
        with budget.reserve("measurement", _nbytes(kernel, sizes[-1])):
            seconds, working = _measure(kernel, sizes, threads or physical_cores())
            trim_heap()
    except BudgetExceeded:  # another thread has taken the free memory
        return _SIZES[0]
    chosen, spread = choose(seconds)
    found = known.pop(f"disturbed {key}", None)
    if spread > _STEADY or working < _WORKING:
        tries: list[int] = [*(size for size in (found if isinstance(found, list) else ()) if size in _SIZES), chosen]
        chosen = max(tries)
        if len(tries) < _TRIES:
            _disturbed[key] = chosen
            remember(path, {**known, f"disturbed {key}": tries})
            return chosen
    remember(path, {**known, key: chosen})
    return chosen


def choose(seconds: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    """The smallest size that reaches 97 % of the best throughput in its fastest run, and the ratio of this size's
    slowest run to its fastest.

    Args:
        seconds: times of the runs, by size in tokens.
    """
    rates = {size: size // _SEQUENCE / min(runs) for size, runs in seconds.items()}
    best = max(rates.values())
    size = min(size for size, rate in rates.items() if rate >= _ENOUGH * best)
    return size, max(seconds[size]) / min(seconds[size])


def _nbytes(kernel: LayerKernel, tokens: int) -> int:
    """Bytes for the measurement of a size: states, a layer's random weights, and the numbers they are made from."""
    states = tokens * kernel.spec.hidden * (4 + np.dtype(kernel.hidden_dtype).itemsize)
    return kernel.workspace(tokens, _SEQUENCE) + states + 3 * kernel.spec.nbytes


def _measure(kernel: LayerKernel, sizes: list[int], threads: int) -> tuple[dict[int, list[float]], float]:
    """The times of the runs of each size, and the share of the time in which the threads worked in the largest runs."""
    generator = np.random.default_rng(0)
    weights: dict[str, npt.NDArray[np.generic]] = {}
    for tensor in kernel.spec.tensors():
        if tensor.dtype == "int8":
            weights[tensor.name] = generator.integers(-127, 128, tensor.shape, dtype=np.int8)
        else:
            weights[tensor.name] = (generator.standard_normal(tensor.shape, np.float32) * 0.02).astype(tensor.dtype)
    bound = kernel.bind(weights)  # as in a pass, where a layer is bound once for all chunks
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    worked = 0.0
    for turn in range(_ROUNDS + 1):
        for size in sizes:
            lengths = np.full(size // _SEQUENCE, _SEQUENCE, np.int32)
            shape = int(lengths.sum()), kernel.spec.hidden
            states = generator.standard_normal(shape, np.float32).astype(kernel.hidden_dtype)
            started, before = time.perf_counter(), time.process_time()
            kernel.run(states, lengths, bound)
            if turn > 0:  # the first round warms up
                seconds[size].append(time.perf_counter() - started)
                worked += (time.process_time() - before) * (size == sizes[-1])
    return seconds, worked / sum(seconds[sizes[-1]]) / threads
