"""The cost of a stage: a table of points, each for a number of devices and a batch, with the origin of its numbers.

`frontier` keeps the choices that no other choice dominates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge.errors import InputError

Origin = Literal["measured", "predicted", "calibrated", "circular"]
"""The origin of a number: measured on this machine; computed from published constants alone; computed with a constant
that was chosen to fit published results; or fitted to the very result with which it is compared."""

ORIGINS: Sequence[Origin] = ("measured", "predicted", "calibrated", "circular")


@dataclass(frozen=True, slots=True)
class Point:
    """A stage on some devices with some requests at a time.

    Attributes:
        devices: number of accelerators, or of servers for retrieval.
        batch: number of calls that are done together.
        latency: seconds until the batch is done.
        interval: seconds until the next batch can begin. It is less than `latency` if parts of the model follow one
            another on several devices.
        weights: bytes of the stage's model on all its devices together.
        working: additional bytes while a batch runs, on all devices together.
        how: description of the division of the work, for people.
    """

    devices: int
    batch: int
    latency: float
    interval: float
    weights: float = 0.0
    working: float = 0.0
    how: str = ""


@dataclass(frozen=True, slots=True)
class StageTable:
    """The points of one stage.

    Raises:
        InputError: there are no points.
    """

    stage: str
    points: tuple[Point, ...]
    origin: Origin

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(f"nothing is known about the stage {self.stage}: it fits no number of devices")

    def devices(self) -> list[int]:
        """The numbers of devices for which there are points, ascending."""
        return sorted({point.devices for point in self.points})

    def at(self, devices: int) -> list[Point]:
        """The points for this number of devices."""
        return [point for point in self.points if point.devices == devices]

    def batched(self, devices: int, batch: int) -> list[Point]:
        """The points for this number of devices and this batch."""
        return [point for point in self.points if point.devices == devices and point.batch == batch]


def unbeaten(points: Iterable[Point]) -> list[Point]:
    """The points that no other one with the same devices and batch dominates in latency, interval and bytes."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.devices, p.batch, p.latency, p.interval, p.weights + p.working)):
        rivals = (p for p in kept if (p.devices, p.batch) == (point.devices, point.batch))
        if not any(
            p.latency <= point.latency
            and p.interval <= point.interval
            and p.weights + p.working <= point.weights + point.working
            for p in rivals
        ):
            kept.append(point)
    return kept


Costs = npt.NDArray[np.float64]
"""One row for each choice, one column for each cost; lower is better."""

_BLOCK = 256

_STRONGEST = 64
"""Rows that all others are compared with first."""


def frontier(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows that no other row dominates, ascending by the first column; of equal rows one is kept.

    A row dominates another if it is larger in no column and smaller in at least one.

    Args:
        costs: [n, d], finite.
    """
    hopeful = _hopeful(costs)
    order = hopeful[np.lexsort(costs[hopeful].T[::-1])]
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


def _hopeful(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows that are left after a comparison with the few whose ranks in all columns have the smallest sum. Of many
    rows these dominate most."""
    if len(costs) <= 2 * _STRONGEST:
        return np.arange(len(costs))
    ranks = costs.argsort(axis=0).argsort(axis=0).sum(axis=1)
    strongest = ranks.argpartition(_STRONGEST)[:_STRONGEST]
    left = ~_beaten(costs, costs[strongest])
    left[strongest] = True
    return np.flatnonzero(left)


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
