"""Vectors of the turns of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

CONTEXT = 0.5
"""Weight of the turn before in a turn's vector (`edge bench memory`)."""

_TINY = 1e-12


def in_context(vectors: Vectors, previous: Sequence[int | None]) -> Vectors:
    """Vectors of turns, each with a share of what was said before it: an answer seldom names what it answers.

    Args:
        vectors: [n or more, dim], of unit length.
        previous: for each of the first n rows, the row of the turn before, None if there is none.

    Returns:
        [n, dim], of unit length.
    """
    mixed: Vectors = vectors[: len(previous)].copy()
    for row, place in enumerate(previous):
        if place is not None:
            mixed[row] += CONTEXT * vectors[place]
            mixed[row] /= max(float(np.linalg.norm(mixed[row])), _TINY)
    return mixed
