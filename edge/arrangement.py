"""How one request is laid out in the memory that is free: chunk size, where hidden states live, how wide the window is.

What gives speed is granted in the order of what it saves: chunks large enough to saturate the cores, then hidden states
in memory instead of on disk, then pinned layers. With the least there is still an answer, only later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge.chunking import OffloadedStates
from edge.window import SLIDING

SLACK = 1 << 20
"""Bytes kept back per request for small arrays and the allocator's rounding."""


@dataclass(frozen=True, slots=True)
class Request:
    """Sizes of one request.

    Attributes:
        tokens: of all sequences together.
        longest: tokens of the longest sequence, which cannot be cut.
        width: of a hidden state, and `dtype` how it is held between layers.
        workspace: bytes a layer needs for a chunk of so many tokens, the longest sequence's being the second argument.
        layers, layer_nbytes: number and size of the weight blocks.
        saturating_tokens: chunk size past which the cores gain nothing.
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
class Arrangement:
    """What was chosen: tokens of a chunk, hidden states resident or offloaded, bytes for weights and in all.

    Attributes:
        nbytes: of states, workspace and the two sliding buffers; pinned layers come on top as far as memory is free.
        saturated: the chunk is as large as is useful.
    """

    chunk_tokens: int
    resident: bool
    workspace: int
    nbytes: int
    saturated: bool


def arrange(request: Request, available: int, *, resident: bool | None = None) -> Arrangement | None:
    """The fastest arrangement within `available` bytes (weights included), or None if not even the least fits.

    Args:
        resident: where hidden states must live; None leaves it open.
    """
    if resident is not None:
        return _fit(request, available, _chunk_sizes(request), resident=resident)
    best = _fit(request, available, _chunk_sizes(request), resident=True)
    if best is not None and best.saturated:
        return best
    offloaded = _fit(request, available, _chunk_sizes(request), resident=False)
    # States in memory at an unsaturated chunk lose to offloaded ones at a larger chunk: disk time hides, idle cores do
    # not.
    if best is None or (offloaded is not None and offloaded.chunk_tokens > best.chunk_tokens):
        return offloaded
    return best


def least(request: Request) -> int:
    """Bytes of the smallest arrangement that works: the number a refused caller is told."""
    return min(_layout(request, request.longest, resident=resident).nbytes for resident in (True, False))


def _chunk_sizes(request: Request) -> list[int]:
    """Candidate chunk sizes, largest first: the saturating size and ever smaller ones, down to one longest sequence."""
    sizes = []
    size = max(request.longest, min(request.saturating_tokens, request.tokens))
    while size > request.longest:
        sizes.append(size)
        size = max(request.longest, size * 3 // 4)
    return [*sizes, request.longest]


def _fit(request: Request, available: int, sizes: list[int], *, resident: bool) -> Arrangement | None:
    for size in sizes:
        layout = _layout(request, size, resident=resident)
        if layout.nbytes <= available:
            return layout
    return None


def _layout(request: Request, chunk_tokens: int, *, resident: bool) -> Arrangement:
    itemsize = np.dtype(request.dtype).itemsize
    # Sequences pruned in between leave gaps, and then a chunk is copied together before it runs.
    workspace = request.workspace(chunk_tokens, request.longest) + chunk_tokens * request.width * itemsize
    if resident:
        states = request.tokens * request.width * itemsize
    else:
        states = OffloadedStates.memory_needed(min(chunk_tokens, request.tokens), request.width, request.dtype)
    weights = min(SLIDING, request.layers) * request.layer_nbytes
    return Arrangement(
        chunk_tokens=chunk_tokens,
        resident=resident,
        workspace=workspace,
        nbytes=states + workspace + weights + SLACK,
        saturated=chunk_tokens >= min(request.saturating_tokens, request.tokens),
    )
