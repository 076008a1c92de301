"""The search for an accelerator's parallel units that answer most queries per second (FANNS).

The source tries every combination of units that fits the chip. Here a rate is assumed, each stage gets the fewest units
that reach it, and the largest rate whose units fit is the answer: stages do not influence each other otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge.errors import RangeError
from edge.planner.search_accelerator import (
    PUBLISHED,
    AcceleratorNumbers,
    SearchParameters,
    Units,
    queries_per_second,
    queues,
    stage_cycles,
)

CHIP_LUTS = 1_303_680
"""Look-up tables (the chip's logic) of a U55C."""

SHELL_LUTS = 337_557
"""Logic of everything around the search: network, memory controllers, and the part that never changes."""

UNIT_LUTS = {"centroids": 5_322, "tables": 7_182, "scanning": 5_471, "place": 183, "rotation": 3_660}
"""Logic of one unit of each stage with its connections, of one place in a queue, and of the rotation.

These and `SHELL_LUTS` are sums of the numbers that FANNS' published artifact lists for its measured parts.
"""

USABLE = 0.64
"""Share of the chip's logic that a design may use. Calibrated: by these numbers the three designs of table 6.3 take 61,
62 and 64 %. The source names 60 % and prints no logic of single units."""

_PRECISION = 1.001
"""Ratio of cycles to which the fastest units are searched for."""

_MOST = 127
"""Most units of a stage that are tried, as in the source's artifact."""


@dataclass(frozen=True, slots=True)
class Design:
    """Units for one way of searching, the queries per second that they answer, and the share of the logic they use."""

    units: Units
    rate: float
    logic: float


def logic(search: SearchParameters, units: Units) -> float:
    """Share of the chip's logic that units take, with a queue of full length for each stream of results."""
    places = (queues(units) + 1) * search.results + (units.selecting + 1) * search.probed
    luts = (
        SHELL_LUTS + UNIT_LUTS["centroids"] * units.centroids + UNIT_LUTS["tables"] * units.tables
        + UNIT_LUTS["scanning"] * units.scanning + UNIT_LUTS["place"] * places
        + (UNIT_LUTS["rotation"] if search.rotated else 0)
    )  # fmt: skip
    return luts / CHIP_LUTS


def design(search: SearchParameters, numbers: AcceleratorNumbers = PUBLISHED, *, usable: float = USABLE) -> Design:
    """The units that answer most queries per second; among equally fast ones those that take least logic.

    Args:
        usable: share of the chip's logic that may be used.

    Raises:
        RangeError: not even one unit of each stage fits the chip.
    """
    best: Design | None = None
    for scanning in range(1, _MOST + 1):
        units = Units(centroids=1, tables=1, scanning=scanning, selecting=1)
        if logic(search, units) > usable:
            break
        # With these scanning units, the stages that no other unit changes bound the rate.
        cycles = stage_cycles(search, units, numbers)
        bound = max(cycles["scan"], cycles["selection"], cycles.get("rotation", 0.0))
        low, high = bound, bound
        while (found := _fitted(search, scanning, high, numbers, usable)) is None:
            low, high = high, 1.3 * high
        while high > _PRECISION * low:  # a longer time never needs more units
            middle = (low * high) ** 0.5
            fitted = _fitted(search, scanning, middle, numbers, usable)
            low, high, found = (middle, high, found) if fitted is None else (low, middle, fitted)
        candidate = Design(found, queries_per_second(search, found, numbers), logic(search, found))
        if best is None or (candidate.rate, -candidate.logic) > (best.rate, -best.logic):
            best = candidate
    if best is None:
        raise RangeError(f"one unit of each stage with queues of {search.results} results does not fit the chip")
    return best


def _fitted(
    search: SearchParameters, scanning: int, bound: float, numbers: AcceleratorNumbers, usable: float
) -> Units | None:
    """The fewest units beside `scanning` ones whose stages take at most `bound` cycles; None if they do not fit."""
    units = Units(centroids=1, tables=1, scanning=scanning, selecting=1)
    for name, stage in (
        ("centroids", "centroid distances"), ("selecting", "list selection"), ("tables", "tables"),
    ):  # fmt: skip
        low, high = 1, _MOST
        if stage_cycles(search, replace(units, **{name: high}), numbers)[stage] > bound:
            return None
        while low < high:  # more units never make a stage slower
            middle = (low + high) // 2
            if stage_cycles(search, replace(units, **{name: middle}), numbers)[stage] <= bound:
                high = middle
            else:
                low = middle + 1
        units = replace(units, **{name: low})
    return units if logic(search, units) <= usable else None
