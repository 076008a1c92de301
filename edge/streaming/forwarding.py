"""Monolithic forwarding (GRATING, section 3.2): all sequences advance through a layer before any enters the next.
Pruning needs their scores, and every layer is read at most once per pass.

Memory goes first to what saves most time (`plan_memory`): chunks large enough to saturate the cores, then resident
hidden states, then pinned layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.streaming.hidden_states import HiddenStates, OffloadedStates, TokenChunk, plan_chunks
from edge.streaming.window import SLIDING, SlidingWindow
from edge.trace import Trace

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


class Kernel(Protocol):
    """One compiled layer, see `edge.runtimes.base.LayerKernel`."""

    def bind(self, weights: Tensors) -> Tensors: ...

    def advance(
        self, states: Array, lengths: npt.NDArray[np.int32], weights: Tensors, prefix: object | None = None
    ) -> None: ...

    def run_prefix(self, states: Array, weights: Tensors) -> tuple[Array, object]: ...


class Observer(Protocol):
    """Sees the hidden states after each layer and decides which sequences go on, such as a pruner or a pooler."""

    def wants(self, layer: int) -> bool:
        """Whether `collect` shall be called with the states after `layer` layers."""

    def collect(self, chunk: TokenChunk, states: Array) -> None:
        """Receives a chunk's new states, [chunk.tokens, width], before they are stored."""

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns those of the `active` sequences that go on after `layer` layers; none ends the pass. Layer 0 means
        the texts of a request before they are tokenized; those returned are numbered anew from 0."""


def forward(
    *,
    window: SlidingWindow,
    tensors: Callable[[int, Any], Tensors],
    kernel: Kernel,
    states: HiddenStates,
    embed: Callable[[TokenChunk], Array],
    observer: Observer,
    chunk_tokens: int,
    prefixes: Sequence[Array] = (),
    on_layer: Callable[[], None] | None = None,
    wanted: Callable[[], bool] | None = None,
    between: Callable[[], None] | None = None,
    trace: Trace,
) -> None:
    """Runs all sequences of `states` through the layers of `window`, until the observer keeps none.

    `tensors` names those in layer i's bytes; `embed` gives a chunk's layer-0 input [chunk.tokens, width]; `prefixes`
    are each group's embedded first tokens [tokens, width] (causal models only). `on_layer` comes after each layer,
    `wanted` before each chunk (if False the rest is left out, and the observer must keep none), and `between`, which
    may run another pass through the same window."""
    active = states.order
    layers = len(window.order)
    before = list(prefixes)
    chunks = _chunks(active, states, chunk_tokens, apart=bool(before))
    with trace.span("embed", "compute", sequences=len(active)):
        states.enter(chunks, embed)
    for layer in range(layers):
        with window.block(layer) as block, trace.span(f"layer {layer}", "compute", sequences=len(active)):
            weights = kernel.bind(tensors(layer, block))
            context: object | None = None
            group = -1
            collecting = observer.wants(layer + 1)
            for chunk, hidden in states.stream(chunks):
                if wanted is not None and not wanted():
                    break
                if between is not None:
                    between()
                if before and (own := int(states.groups[chunk.ids[0]])) != group:
                    # The groups come one after the other, so that memory holds the context of one group at a time.
                    group, context = own, None
                    before[group], context = kernel.run_prefix(before[group], weights)
                kernel.advance(hidden, chunk.lengths, weights, context)
                if collecting:
                    observer.collect(chunk, hidden)
                if layer + 1 < layers:
                    states.store(chunk, hidden)
            del weights
        trace.count("forward.layers")
        trace.count("forward.evaluations", len(active))
        if on_layer is not None:
            on_layer()
        kept = observer.decide(layer + 1, active)
        if len(kept) == 0:
            return
        if len(kept) < len(active):
            active = kept
            chunks = _chunks(active, states, chunk_tokens, apart=bool(before))


def _chunks(active: npt.NDArray[np.int64], states: HiddenStates, chunk_tokens: int, *, apart: bool) -> list[TokenChunk]:
    if not apart:
        return plan_chunks(active, states.lengths, chunk_tokens)
    breaks = np.flatnonzero(np.diff(states.groups[active])) + 1
    parts = np.split(active, breaks)
    return [chunk for part in parts for chunk in plan_chunks(part, states.lengths, chunk_tokens)]


SLACK = 1 << 20
"""Bytes reserved per request for small arrays and the allocator's rounding."""


@dataclass(frozen=True, slots=True)
class PassSizes:
    """The sizes of one request. `workspace`: bytes a layer needs for the tokens of a chunk and of the longest sequence.
    Above `saturating_tokens` the cores gain nothing."""

    tokens: int
    longest: int
    width: int
    dtype: str
    workspace: Callable[[int, int], int]
    layers: int
    layer_nbytes: int
    saturating_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The layout of a request: tokens of a chunk, whether states are resident, the bytes of states, workspace and two
    weight buffers, and whether the chunk is as large as is useful."""

    chunk_tokens: int
    resident: bool
    workspace: int
    nbytes: int
    saturated: bool


def plan_memory(request: PassSizes, available: int, *, resident: bool | None = None) -> MemoryPlan | None:
    """The fastest plan within `available` bytes (weights included), or None if not even the least fits. Hidden states
    are in memory as `resident` says, if given."""
    if resident is not None:
        return _fit(request, available, _chunk_sizes(request), resident=resident)
    best = _fit(request, available, _chunk_sizes(request), resident=True)
    if best is not None and best.saturated:
        return best
    offloaded = _fit(request, available, _chunk_sizes(request), resident=False)
    # A larger chunk with offloaded states beats resident states with an unsaturated chunk: disk reads overlap
    # computing, but idle cores are lost.
    if best is None or (offloaded is not None and offloaded.chunk_tokens > best.chunk_tokens):
        return offloaded
    return best


def least(request: PassSizes) -> int:
    """Bytes of the smallest plan that works, for the message to a refused caller."""
    return min(_layout(request, request.longest, resident=resident).nbytes for resident in (True, False))


def _chunk_sizes(request: PassSizes) -> list[int]:
    """Candidate chunk sizes from the saturating size down to the longest sequence, each about 3/4 of the one before."""
    sizes = []
    size = max(request.longest, min(request.saturating_tokens, request.tokens))
    while size > request.longest:
        sizes.append(size)
        size = max(request.longest, size * 3 // 4)
    return [*sizes, request.longest]


def _fit(request: PassSizes, available: int, sizes: list[int], *, resident: bool) -> MemoryPlan | None:
    for size in sizes:
        layout = _layout(request, size, resident=resident)
        if layout.nbytes <= available:
            return layout
    return None


def _layout(request: PassSizes, chunk_tokens: int, *, resident: bool) -> MemoryPlan:
    itemsize = np.dtype(request.dtype).itemsize
    # Pruned sequences leave gaps in a chunk. Such a chunk is copied into one piece before it runs.
    workspace = request.workspace(chunk_tokens, request.longest) + chunk_tokens * request.width * itemsize
    if resident:
        states = request.tokens * request.width * itemsize
    else:
        states = OffloadedStates.memory_needed(min(chunk_tokens, request.tokens), request.width, request.dtype)
    weights = min(SLIDING, request.layers) * request.layer_nbytes
    return MemoryPlan(
        chunk_tokens=chunk_tokens,
        resident=resident,
        workspace=workspace,
        nbytes=states + workspace + weights + SLACK,
        saturated=chunk_tokens >= min(request.saturating_tokens, request.tokens),
    )
