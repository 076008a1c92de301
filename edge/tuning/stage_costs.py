"""`StageCosts`: the time of a search as a sum over its stages, with rates that measurements on this machine give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.ivf.maintenance.recall import NEIGHBOURS

STAGES = ("query", "coarse quantizer", "lists", "queue", "rescoring")
"""Stages that all codecs share. Scanning rows and preparing a query have a rate for each codec."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one query.

    Attributes:
        codec: name of the codec and bytes of its codes.
        dim: dimensions of the vectors.
        lists, probed: number of lists, and of those that are probed.
        rows: rows scanned.
        queue: places in the queue of results.
        rescored: exact scores computed after the scan.
    """

    codec: tuple[str, int]
    dim: int
    lists: int
    probed: int
    rows: float
    queue: int
    rescored: float

    def amounts(self) -> dict[str, float]:
        """The amount of work in each stage: queries, multiplications of centroids, lists, insertions into the queue
        times their depth, exact scores; rows of this codec, and queries that it prepares."""
        inserted = self.queue * (1 + math.log(max(1.0, self.rows / self.queue)))
        exact = self.codec[0] == "flat"
        return {
            "query": 1.0,
            "coarse quantizer": float(self.lists * self.dim),
            "lists": float(self.probed),
            "queue": inserted * math.log2(1 + self.queue),
            "rescoring": 0.0 if exact else self.rescored,
            scan_of(self.codec): self.rows,
            prepare_of(self.codec): 0.0 if exact else 1.0,
        }


def scan_of(codec: tuple[str, int]) -> str:
    """The name of the stage that scans the rows of a codec."""
    return f"scan of {codec[0]} {codec[1]}"


def prepare_of(codec: tuple[str, int]) -> str:
    """The name of the stage that prepares a query for a codec: its tables, and the reading of its candidates."""
    return f"preparation for {codec[0]} {codec[1]}"


def queue_places(rescore: int, *, exact: bool, spare: int = 8) -> int:
    """Places of a search's queue for ten results (see `edge.ivf.scan`)."""
    return NEIGHBOURS * (1 if exact else rescore) + spare


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of one unit of work in each stage.

    Attributes:
        rates: by the names of `Load.amounts`.
        error: largest relative error on the measurements that the rates were fitted to.
    """

    rates: Mapping[str, float]
    error: float

    def seconds(self, load: Load) -> float:
        """Predicted seconds of a query."""
        return sum(self.rates.get(name, 0.0) * amount for name, amount in load.amounts().items())

    def shares(self, load: Load) -> dict[str, float]:
        """Seconds of each stage."""
        return {name: self.rates.get(name, 0.0) * amount for name, amount in load.amounts().items()}

    @classmethod
    def fitted(cls, loads: Sequence[Load], seconds: Sequence[float]) -> StageCosts:
        """The rates, none below 0, that predict the measured `seconds` [n] of `loads` with the least relative error."""
        names = sorted({name for load in loads for name in load.amounts()})
        work = np.array([[load.amounts().get(name, 0.0) for name in names] for load in loads])
        measured = np.array(seconds)
        rates = _not_negative(work / measured[:, None], np.ones(len(loads)))
        errors = np.abs(work @ rates / measured - 1)
        return cls(dict(zip(names, rates.tolist(), strict=True)), float(errors.max()))


def _not_negative(matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The `x` >= 0 [n] with the least squared error of `matrix` [m, n] times `x` from `target` [m].

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(np.float64).tiny)
    matrix = matrix / scale
    count = matrix.shape[1]
    solution = np.zeros(count)
    free = np.zeros(count, np.bool_)
    for _ in range(10 * count):
        gain = matrix.T @ (target - matrix @ solution)
        if free.all() or gain[~free].max() <= 1e-10:
            break
        free[np.flatnonzero(~free)[gain[~free].argmax()]] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if (trial[free] > 0).all():
                break
            falling = free & (trial <= 0)
            steps = solution[falling] / np.maximum(solution[falling] - trial[falling], np.finfo(np.float64).tiny)
            solution = solution + float(steps.min()) * (trial - solution)
            free &= solution > 1e-15
        solution = trial
    rates: npt.NDArray[np.float64] = solution / scale
    return rates
