"""The Pareto frontier: the choices that no other choice dominates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]
"""One row for each choice, one column for each cost; lower is better."""

_BLOCK = 256


def frontier(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows that no other row dominates, ascending by the first column; of equal rows one is kept.

    A row dominates another if it is larger in no column and smaller in at least one.

    Args:
        costs: [n, d], finite.
    """
    order = np.lexsort(costs.T[::-1])
    # In this order no row is dominated by a later one.
    kept_rows = np.empty((0, costs.shape[1]))
    kept: list[npt.NDArray[np.intp]] = []
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        rows = costs[block]
        left = ~_beaten(rows, kept_rows)
        block, rows = block[left], rows[left]
        within = (rows[None, :, :] <= rows[:, None, :]).all(axis=2)  # within[i, j]: row j is nowhere larger than row i
        earlier = np.tril(np.ones((len(block), len(block)), bool), -1)
        stays = ~(within & earlier).any(axis=1)
        kept.append(block[stays])
        kept_rows = np.concatenate((kept_rows, rows[stays]))
    return np.concatenate(kept) if kept else np.empty(0, np.intp)


def _beaten(rows: Costs, by: Costs) -> npt.NDArray[np.bool_]:
    """Whether each row is dominated by, or equal to, a row of `by`: [n]."""
    beaten = np.zeros(len(rows), bool)
    for start in range(0, len(by), 2048):
        part = by[start : start + 2048]
        left = np.flatnonzero(~beaten)
        smaller = np.ones((len(left), len(part)), bool)
        for column in range(rows.shape[1]):
            smaller &= part[None, :, column] <= rows[left, None, column]
        beaten[left] = smaller.any(axis=1)
    return beaten
