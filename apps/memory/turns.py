"""The vectors of a conversation's turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

CONTEXT = 0.5
"""The weight of the previous turn in a turn's vector (`edge bench memory`)."""

_TINY = 1e-12


def in_context(vectors: Vectors, previous: Sequence[int | None]) -> Vectors:
    """The vectors of turns, each mixed with the vector of the turn before it, because an answer seldom names its
    question.

    Args:
        vectors: vectors of unit length, [n or more, dim].
        previous: for each of the first n rows, the row of the turn before it; None if there is none.

    Returns:
        The mixed vectors, [n, dim], of unit length.
    """
    mixed: Vectors = vectors[: len(previous)].copy()
    for row, place in enumerate(previous):
        if place is not None:
            mixed[row] += CONTEXT * vectors[place]
            mixed[row] /= max(float(np.linalg.norm(mixed[row])), _TINY)
    return mixed
