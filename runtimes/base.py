"""The interface between the scheduling core and the runtimes, which execute transformer layers.

A `Runtime` turns a `LayerSpec` into one `LayerKernel`: a compiled layer function that takes the weights as arguments.
One kernel therefore serves every layer of a model, and streamed weights need no recompilation. Its `Workplace` is the
memory in which the layers work, either the host's or that of a device. Runtimes are found through the entry-point group
`edge.runtimes`. A third party's runtime is one class in a pip-installed package.
"""

from __future__ import annotations

import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import psutil

from edge.blocks import stretches
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import CapabilityError, ConfigError
from edge.link import Lane
from edge.models.packed import PackedModel
from edge.models.spec import LayerSpec
from edge.models.tokenizer import TokenBatch
from edge.plugins import load, names, parse_device
from edge.runtimes.input import Feed, InputEmbedding
from edge.streaming.forwarding import MemoryPlan, PassSizes, least
from edge.streaming.hidden_states import Groups, HiddenStates, OffloadedStates, ResidentStates, StatesShape, TokenChunk
from edge.streaming.window import HostWay, Way
from edge.trace import Trace

Hidden = npt.NDArray[Any]
HiddenDtype = Literal["float32", "float16"]
Weights = Mapping[str, npt.NDArray[Any]]

AUTOMATIC = ("native", "onnx")
"""The runtimes that "auto" chooses from, the fastest first. The last one supports every layer."""


class StatesElsewhere(ABC):
    """Hidden states [tokens, hidden] outside host memory. Vectors are computed from them on their own device."""

    @abstractmethod
    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> Any:
        """The state of each sequence's first or last token, or the mean of all its tokens: [batch, hidden] fp32. The
        result becomes an array by `np.asarray`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys (normalized and rotated) and values of a shared prefix, as arrays of the runtime: [tokens, kv_heads,
    head_size], or with the first two axes exchanged."""

    keys: Any
    values: Any


class LayerKernel(ABC):
    """One compiled layer. Sequences are packed: their tokens lie one after the other, without padding. The result of a
    sequence depends on its own tokens and the weights only. Other sequences in the same chunk do not change it by more
    than rounding of 1e-6."""

    spec: LayerSpec
    hidden_dtype: HiddenDtype
    saturating_tokens: int = 1024
    """Number of tokens in a chunk beyond which a pass gets no faster."""

    def bind(self, weights: Weights) -> Weights:
        """Prepares a layer's weights once for all following chunks, for example with a copy to the memory of a GPU.
        `run` and `run_prefix` take the result in place of the weights, until the next layer is bound. The memory of the
        result is part of `workspace`."""
        return weights

    @abstractmethod
    def run(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> Hidden:
        """Advances a chunk of packed sequences through the layer.

        Args:
            states: [tokens, hidden] in `hidden_dtype`, C-contiguous, sequence after sequence; never written to.
            lengths: [batch] tokens of each sequence, at least 1, in that order; they sum to `tokens`.
            weights: every tensor of `spec.tensors()` by name; read only, and not kept after the call.
            prefix: the keys and values that `run_prefix` returned for this layer. With it every sequence attends to the
                prefix's tokens as well, and its own positions start after them. Only for causal layers.

        Returns:
            [tokens, hidden] in `hidden_dtype`, owned by the caller.
        """

    def advance(
        self, states: Hidden, lengths: npt.NDArray[np.int32], weights: Weights, prefix: object | None = None
    ) -> None:
        """Like `run`, but replaces the content of `states`. A kernel that writes in place saves an array and a copy."""
        states[...] = self.run(states, lengths, weights, prefix)

    def run_prefix(self, states: Hidden, weights: Weights) -> tuple[Hidden, object]:
        """Advances a shared prefix, [tokens, hidden], through a causal layer. A kernel of such layers overrides it.

        Returns:
            The prefix's new hidden states, and its keys and values as an opaque object for `run`
            (`kv_heads * tokens * head_size * 2` fp32 values).

        Raises:
            CapabilityError: the layer is not causal.
        """
        raise CapabilityError("only a causal layer has a prefix that does not depend on what follows it")

    @abstractmethod
    def workspace(self, tokens: int, longest: int, prefix: int = 0) -> int:
        """Upper bound on the bytes that `run` allocates, result included and arguments not included. The chunk has
        `tokens` tokens, and its longest sequence has `longest`."""


class Runtime(ABC):
    """Compiles layers for one execution library. `libraries` stay in memory when its kernels are gone. A compiled layer
    takes at most `compiled_nbytes`, without its weights and its workspace."""

    name: str
    libraries: tuple[str, ...] = ()
    compiled_nbytes: int = 8 << 20

    def planned(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype) -> Callable[[int, int, int], int]:
        """A function that bounds `LayerKernel.workspace` of such layers from above, with the same arguments. Plans use
        it before the kernel is compiled. A runtime with slow compilation overrides this method."""
        return self.layer_kernel(spec, threads=threads, hidden_dtype=hidden_dtype).workspace

    def workplace(self, budget: MemoryBudget, lane: Lane, trace: Trace) -> Workplace:
        """The memory in which this runtime's kernels find weights and states. The engine opens it before it calls
        `layer_kernel`, and closes it.

        Args:
            budget: the process's memory budget.
            lane: the lane that reads weights from the disk.

        Raises:
            CapabilityError: the device is missing.
            BudgetExceeded: the host memory that the place needs does not fit.
        """
        return Workplace(budget, lane)

    def working_nbytes(self, one: PassSizes) -> int:
        """Bytes of host memory that a pass over one longest sequence needs."""
        return least(one)

    def refusal(self, spec: LayerSpec) -> str | None:
        """Why this runtime cannot run such layers on this machine. None if it can, or if only `layer_kernel`
        finds out."""
        return None

    @abstractmethod
    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: HiddenDtype = "float32") -> LayerKernel:
        """Compiles a layer.

        Args:
            threads: number of compute threads; 0 means one per physical core that this process may use.
            hidden_dtype: dtype of the hidden states between layers.

        Raises:
            CapabilityError: the library is missing (the message has the pip line) or the layer kind is not supported.
        """


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def rotation(theta: float, head_size: int, tokens: int, factor: float = 1.0) -> tuple[Hidden, Hidden]:
    """Cosines and sines [tokens, head_size / 2] of the rotary angles (RoFormer, Su et al. 2021), divided by `factor`.
    Each step is computed in fp32 as in Hugging Face transformers, because fp64 gives other values at far positions."""
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    frequencies = np.float32(1) / np.float32(theta) ** exponents / np.float32(factor)
    angles = np.arange(tokens, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def distance_bias(spec: LayerSpec, weights: Weights, q: Hidden, k: Hidden, start: int) -> Hidden:
    """What is added to the attention scores for the distances of tokens, [heads, queries, keys], in a layer with
    `buckets`, `spans` or `alibi`: queries [queries, heads, head_size] of the tokens from `start` on, and the keys of
    all tokens."""
    stop, keys = start + len(q), len(k)
    if spec.alibi:
        apart = np.abs(np.arange(keys, dtype=np.float32) - np.arange(start, stop, dtype=np.float32)[:, None])
        bias: Hidden = -slopes(spec.heads)[:, None, None] * apart
        return bias
    index = np.arange(keys) - np.arange(start, stop)[:, None] + stop - 1
    if spec.buckets:
        by_distance = weights["distances"][_buckets(spec, np.arange(1 - stop, keys))].T
        bias = by_distance[:, index]
        return bias
    rows = _rows(spec, -np.arange(1 - stop, keys))[index]
    shape = (2 * spec.spans, spec.heads, spec.head_size)
    of_keys, of_queries = (
        np.asarray(weights[f"distance_{name}"], np.float32).reshape(shape).transpose(1, 2, 0)
        for name in ("keys", "queries")
    )
    bias = np.take_along_axis(q.transpose(1, 0, 2) @ of_keys, rows[None], axis=2)
    bias += (k.transpose(1, 0, 2) @ of_queries)[:, np.arange(keys), rows]
    bias *= np.float32(spec.scale)
    return bias


def slopes(heads: int) -> Hidden:
    """Each head's slope (ALiBi, Press et al. 2022): powers of 2 ** (-8 / n) for the largest power of two n of heads,
    and for the others every second slope of twice as many heads."""
    power = 1 << heads.bit_length() - 1
    found = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    found += [2 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    return np.array(found, np.float32)


def _buckets(spec: LayerSpec, apart: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each distance of a key from the query. A half of the buckets is for keys before it, the other for
    those after it. Half of each are for single distances, the others for ranges that grow as logarithms do (T5, Raffel
    et al. 2020). Computed in fp32, as in Hugging Face transformers."""
    half = spec.buckets // 2
    exact = half // 2
    far = np.abs(apart)
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    steps /= np.float32(math.log(spec.farthest / exact))
    ranges = np.minimum(exact + (steps * np.float32(half - exact)).astype(np.int64), half - 1)
    found: npt.NDArray[np.int64] = np.where(far < exact, far, ranges) + half * (apart > 0)
    return found


def _rows(spec: LayerSpec, before: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The row of each distance of a key before the query: single distances in the middle, then ranges (DeBERTa)."""
    middle = spec.spans // 2
    far = np.where(np.abs(before) < middle, middle - 1, np.abs(before))
    steps = np.log(far.astype(np.float32) / np.float32(middle))
    steps /= np.log(np.float32((spec.farthest - 1) / middle))
    ranges = np.ceil(steps * np.float32(middle - 1)) + np.float32(middle)
    near = np.where(far <= middle, before, (ranges * np.sign(before)).astype(np.int64))
    rows: npt.NDArray[np.int64] = np.clip(near + spec.spans, 0, 2 * spec.spans - 1)
    return rows


def runs(lengths: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring sequences of equal length, as (count, length)."""
    for low, high in stretches(lengths):
        yield high - low, int(lengths[low])


def runtime_for(name: str, spec: LayerSpec) -> Runtime:
    """The runtime called `name`, or for "auto" the first of `AUTOMATIC` that runs such layers here."""
    if name != "auto":
        return load_runtime(name)
    offered = names("edge.runtimes")
    for candidate in AUTOMATIC[:-1]:
        if candidate in offered and (runtime := load_runtime(candidate)).refusal(spec) is None:
            return runtime
    return load_runtime(AUTOMATIC[-1])


def chosen_runtime(config: Config) -> str:
    """The runtime of a configuration: the one it names, else that of its device if it runs layers, else `auto`."""
    opened = config.opened_device
    name, _ = parse_device(opened)
    return opened if config.runtime == "auto" and name and name in names("edge.runtimes") else config.runtime


def load_runtime(text: str) -> Runtime:
    """The runtime registered in the entry-point group `edge.runtimes`.

    Args:
        text: the runtime's name. The runtime of a device takes the device's options as well, as in `cuda:cap=2GB`.

    Raises:
        CapabilityError: there is no such runtime; the message lists the registered ones.
        ConfigError: the runtime has no such option.
    """
    name, options = parse_device(text)
    try:
        runtime = load("edge.runtimes", name)(**options)
    except TypeError as error:
        raise ConfigError(f"runtime {name} cannot be used with these options: {error}") from error
    assert isinstance(runtime, Runtime)
    return runtime


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over a batch: the request that each sequence belongs to (`groups` [n]), numpy's name of the type of the
    hidden states, and the folder for states that do not fit in memory."""

    batch: TokenBatch
    memory_plan: MemoryPlan
    groups: Groups
    model: PackedModel
    dtype: str
    embedding: InputEmbedding
    scratch: Path

    @property
    def shape(self) -> StatesShape:
        """The size of the hidden states."""
        return StatesShape(self.batch.lengths, self.model.spec.layer.hidden, self.dtype, self.groups)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.batch.lengths.max())

    @property
    def longest_chunk(self) -> int:
        """Upper bound on the tokens of a chunk."""
        return max(self.longest, self.memory_plan.chunk_tokens)


class Workplace:
    """The memory for weights, intermediates and hidden states of a pass: that of this process. A device overrides each
    method. `lane` transfers weights, for its counters. `holds_rows`: token rows lie there, once they were needed."""

    on_host = True
    holds_rows = False

    def __init__(self, memory: MemoryBudget, lane: Lane) -> None:
        self.memory = memory
        self.lane = lane

    def way(self, model: PackedModel) -> Way:
        """The way by which a model's layers are read into a window's buffers."""
        return HostWay(self.lane)

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> dict[str, Any]:
        """Views of a layer's tensors in a window's buffer. Nothing is copied."""
        return model.tensors(model.layer_blocks[layer], buffer)

    def states(self, run: Pass) -> HiddenStates:
        """The storage for a pass's hidden states between layers: memory, or a scratch file."""
        if run.memory_plan.resident:
            return ResidentStates(run.shape, self.memory)
        return OffloadedStates(run.shape, self.memory, self.lane, run.scratch, run.longest_chunk)

    def embed(self, feed: Feed, states: Any) -> Callable[[TokenChunk], Any]:
        """A function that returns layer 0's input of a chunk, in the form that `states.store` takes (`states`: see
        there). The host computes it in the memory of the states."""

        def embed(chunk: TokenChunk) -> npt.NDArray[Any]:
            into: npt.NDArray[Any] = states.room(chunk)
            feed.chunk(chunk, into)
            return into

        return embed

    def beside(self, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Bytes that a pass takes here beside weights, states and the buffers of the layers: part of its workspace."""
        return 0

    def prefix(self, states: npt.NDArray[Any]) -> Any:
        """Layer 0's input of a shared prefix, [tokens, hidden], in the form that `LayerKernel.run_prefix` takes."""
        return states

    def close(self) -> None:
        """Frees the memory of this place."""
