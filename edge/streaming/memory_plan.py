"""Lays out one request in the free memory: chunk size, place of the hidden states, and bytes of weights.

Memory goes first to the uses that save most time: chunks large enough to saturate the cores, then hidden states in
memory instead of on disk, then pinned layers. With the smallest plan the answer is the same, but takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge.streaming.hidden_states import OffloadedStates
from edge.streaming.window import SLIDING

SLACK = 1 << 20
"""Bytes reserved per request for small arrays and the allocator's rounding."""


@dataclass(frozen=True, slots=True)
class Request:
    """The sizes of one request.

    Attributes:
        tokens: number of tokens of all sequences together.
        longest: tokens of the longest sequence, which cannot be cut.
        width, dtype: components of a hidden state, and their type between layers.
        workspace: returns the bytes a layer needs, given the tokens of a chunk and of the longest sequence.
        layers, layer_nbytes: number and size of the weight blocks.
        saturating_tokens: chunk size above which the cores gain nothing.
    """

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
    """The layout of a request: tokens of a chunk, whether hidden states are resident, and the bytes needed.

    Attributes:
        nbytes: bytes of states, workspace and two weight buffers. Pinned layers come on top, as far as memory is free.
        saturated: whether the chunk is as large as is useful.
    """

    chunk_tokens: int
    resident: bool
    workspace: int
    nbytes: int
    saturated: bool


def plan_memory(request: Request, available: int, *, resident: bool | None = None) -> MemoryPlan | None:
    """The fastest plan within `available` bytes (weights included), or None if not even the least fits.

    Args:
        resident: whether hidden states must be in memory (True) or on disk (False); None leaves the choice open.
    """
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


def least(request: Request) -> int:
    """Bytes of the smallest plan that works, for the message to a refused caller."""
    return min(_layout(request, request.longest, resident=resident).nbytes for resident in (True, False))


def _chunk_sizes(request: Request) -> list[int]:
    """Candidate chunk sizes from the saturating size down to the longest sequence, each about 3/4 of the one before."""
    sizes = []
    size = max(request.longest, min(request.saturating_tokens, request.tokens))
    while size > request.longest:
        sizes.append(size)
        size = max(request.longest, size * 3 // 4)
    return [*sizes, request.longest]


def _fit(request: Request, available: int, sizes: list[int], *, resident: bool) -> MemoryPlan | None:
    for size in sizes:
        layout = _layout(request, size, resident=resident)
        if layout.nbytes <= available:
            return layout
    return None


def _layout(request: Request, chunk_tokens: int, *, resident: bool) -> MemoryPlan:
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
