"""A toy layer that mixes a sequence's tokens, and a forward pass that takes every sequence alone through all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def layer(hidden: Array, own: Array, mixed: Array, before: Array | None = None) -> Array:
    """One sequence [tokens, width] through a layer: each token sees itself and the mean of all tokens, those of a
    prefix [tokens, width] `before` it included."""
    seen = hidden if before is None else np.concatenate((before, hidden))
    return np.tanh(hidden @ own + seen.mean(axis=0) @ mixed)


def forward(
    sequences: Sequence[Array], layers: Sequence[tuple[Array, Array]], prefix: Array | None = None
) -> list[list[Array]]:
    """States [tokens, width] of each sequence after each layer: result[layer][sequence]."""
    states = list(sequences)
    result = []
    for own, mixed in layers:
        states = [layer(hidden, own, mixed, prefix) for hidden in states]
        prefix = None if prefix is None else layer(prefix, own, mixed)
        result.append(states)
    return result
