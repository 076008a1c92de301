"""Monolithic forwarding (GRATING, section 3.2): all sequences advance through a layer before any enters the next.

Pruning needs the scores of all sequences after each layer, and this order provides them. It also makes one long stretch
of compute per layer, which hides reading the next layer's weights. Every layer is read at most once per pass, however
many requests the sequences belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.streaming.hidden_states import HiddenStates, TokenChunk, plan_chunks
from edge.streaming.window import SlidingWindow
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
        """Returns those of the `active` sequences that go on after `layer` layers; an empty result ends the pass.

        Before a pass, layer 0 means the texts of a request. Those that are returned are tokenized, and numbered anew
        from 0.
        """


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
    trace: Trace,
) -> None:
    """Runs all sequences of `states` through the layers of `window`, until the observer keeps none.

    Args:
        tensors: returns the named tensors in the bytes of layer i.
        embed: returns the layer-0 input of a chunk: [chunk.tokens, width].
        observer: decides after each layer which sequences go on.
        chunk_tokens: bound on the tokens of a chunk.
        prefixes: for each group of `states` the embedded tokens that precede all its sequences, [tokens, width]; causal
            models only. Their states are computed once per layer, and the whole group attends to them.
        on_layer: called after each layer, when its intermediate results are freed, to check resident memory.

    Raises:
        CorruptBlock, StorageError: weights or offloaded states cannot be read or written.
    """
    active = states.order
    layers = len(window.order)
    before = list(prefixes)
    chunks = _chunks(active, states, chunk_tokens, apart=bool(before))
    with trace.span("embed", "compute", sequences=len(active)):
        for chunk in chunks:
            states.store(chunk, embed(chunk))
    for layer in range(layers):
        with window.block(layer) as block, trace.span(f"layer {layer}", "compute", sequences=len(active)):
            weights = kernel.bind(tensors(layer, block))
            context: object | None = None
            group = -1
            collecting = observer.wants(layer + 1)
            for chunk, hidden in states.stream(chunks):
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
    """The chunks of the remaining sequences. With `apart`, no chunk has sequences of two groups."""
    if not apart:
        return plan_chunks(active, states.lengths, chunk_tokens)
    breaks = np.flatnonzero(np.diff(states.groups[active])) + 1
    parts = np.split(active, breaks)
    return [chunk for part in parts for chunk in plan_chunks(part, states.lengths, chunk_tokens)]
