"""Monolithic forwarding (GRATING, section 3.2): all sequences advance through a layer before any enters the next.

This gives the global view that pruning needs after each layer, and one long stretch of compute per layer that hides
reading the next layer's weights. Every layer is read at most once per request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.chunking import Chunk, HiddenStates, plan_chunks
from edge.trace import Trace
from edge.window import SlidingWindow

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


class Kernel(Protocol):
    """One compiled layer, see `edge.runtimes.base.LayerKernel`."""

    def bind(self, weights: Tensors) -> Tensors: ...

    def run(
        self, states: Array, lengths: npt.NDArray[np.int32], weights: Tensors, prefix: object | None = None
    ) -> Array: ...

    def run_prefix(self, states: Array, weights: Tensors) -> tuple[Array, object]: ...


class Observer(Protocol):
    """Looks at hidden states after each layer and says who goes on: a pruner, a pooler."""

    def wants(self, layer: int) -> bool:
        """Whether `collect` shall see the states after `layer` layers."""

    def collect(self, chunk: Chunk, states: Array) -> None:
        """Sees a chunk's new states, [chunk.tokens, width], before they are stored."""

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Called after `layer` layers: the sequences, of those active, that go on; empty ends the pass."""


def forward(
    *,
    window: SlidingWindow,
    tensors: Callable[[int, memoryview], Tensors],
    kernel: Kernel,
    states: HiddenStates,
    embed: Callable[[Chunk], Array],
    observer: Observer,
    chunk_tokens: int,
    prefix: Array | None = None,
    on_layer: Callable[[], None] | None = None,
    trace: Trace,
) -> None:
    """Runs all sequences of `states` through the layers of `window`, until the observer keeps nobody.

    Args:
        tensors: names the parts of layer i's bytes.
        embed: the layer-0 input of a chunk: [chunk.tokens, width].
        observer: decides who goes on after each layer.
        chunk_tokens: bound on the tokens of a chunk.
        prefix: embedded tokens that every sequence is preceded by, [tokens, width]; causal models only. Its states
            are computed once per layer and attended to by all.
        on_layer: called after each layer, when its intermediates are gone: the place to check resident memory.

    Raises:
        CorruptBlock, StorageError: weights or offloaded states cannot be read or written.
    """
    active = states.order
    layers = len(window.order)
    chunks = plan_chunks(active, states.lengths, chunk_tokens)
    with trace.span("embed", "compute", sequences=len(active)):
        for chunk in chunks:
            states.store(chunk, embed(chunk))
    for layer in range(layers):
        with window.block(layer) as block, trace.span(f"layer {layer}", "compute", sequences=len(active)):
            weights = kernel.bind(tensors(layer, block))
            context: object | None = None
            if prefix is not None:
                prefix, context = kernel.run_prefix(prefix, weights)
            collecting = observer.wants(layer + 1)
            for chunk, hidden in states.stream(chunks):
                hidden = kernel.run(hidden, chunk.lengths, weights, context)
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
            chunks = plan_chunks(active, states.lengths, chunk_tokens)
