"""What a design takes of an ECP5, and the design that answers most queries on it. The factors for look-up tables are
fitted to synthesized designs (`synthesized.json`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.devices.fpga.shape import CODES, ENTRY, Shape, stages
from edge.devices.searchers import queue_length
from edge.errors import RangeError

CHIP = "LFE5U-85F"
"""The largest ECP5."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Parts of the chip: look-up tables of 4 inputs, memory blocks of 18 kbit, and multipliers of 18 bits."""

    luts: int
    blocks: int
    multipliers: int


WHOLE = Resources(83_640, 208, 156)
"""The parts of the chip."""

USABLE = 0.6
"""Share of the look-up tables that a design may use, as in FANNS. Memory and multipliers may be used up."""

GOAL = 90e6
"""Cycles per second that constraints ask for and times assume. Three designs were placed, at 95e6 to 102e6."""

_BLOCK_BITS = 1 << 14
"""Bits of a memory block without its parity bits, which these words do not use."""

_BLOCK_WIDTH = 32

_SHALLOW = 32
"""Words up to which yosys makes a memory of look-up tables: four of them hold 16 words of 4 bits."""

REPORTS = Path(__file__).with_name("synthesized.json")


@dataclass(frozen=True, slots=True)
class Synthesized:
    """A synthesized design; with the clock in hertz where it was placed, too."""

    shape: Shape
    resources: Resources
    frequency: float | None = None


@cache
def reports() -> tuple[Synthesized, ...]:
    return tuple(
        Synthesized(Shape(**row["shape"]), Resources(**row["resources"]), row["frequency"])
        for row in json.loads(REPORTS.read_text())["designs"]
    )


def parts_of(shape: Shape) -> list[float]:
    """The numbers that look-up tables besides those of memories grow with."""
    places = shape.units * shape.kept + shape.results
    lanes = 0
    if shape.lists:
        places += (shape.centroids + 1) * shape.probed
        lanes = shape.centroids * shape.lanes
    looked = shape.units * shape.parts if shape.codec == "pq" else 0
    if shape.codec == "bytes":
        lanes += shape.units * shape.lanes
    built = shape.builders * shape.lanes if shape.codec == "pq" else 0
    return [places, looked, lanes, shape.units, built, 1.0]


def fitted(designs: Sequence[Synthesized]) -> npt.NDArray[np.float64]:
    """The factors of `parts_of`, by least squares of relative errors. One that would be below zero is left out."""
    rows = np.array([parts_of(design.shape) for design in designs])
    whole = np.array([design.resources.luts for design in designs], float)
    memories = np.array([_memories(design.shape)[0] for design in designs])
    used = list(range(rows.shape[1]))
    while True:
        found = np.linalg.lstsq(rows[:, used] / whole[:, None], 1 - memories / whole, rcond=None)[0]
        if (found >= 0).all():
            factors = np.zeros(rows.shape[1])
            factors[used] = found
            return factors
        del used[int(found.argmin())]


@cache
def _factors() -> npt.NDArray[np.float64]:
    return fitted(reports())


def _memory(width: int, depth: int) -> tuple[int, int]:
    if depth <= _SHALLOW:
        return 4 * -(-depth // 16) * -(-width // 4), 0
    return 0, max(-(-width * depth // _BLOCK_BITS), -(-width // _BLOCK_WIDTH))


def _memories(shape: Shape) -> tuple[int, int]:
    weights, found = _memory(ENTRY * shape.lanes, 2 * shape.beats), []
    if shape.codec == "pq":
        found.append((0, shape.units * shape.parts))
        words = shape.parts // shape.builders * CODES * (shape.dim // shape.parts // shape.lanes)
        found += [_memory(8 * shape.lanes, words)] * shape.builders
    else:
        found += [weights] * shape.units
    if shape.lists:
        rounds = -(-shape.lists // shape.centroids)
        found += [_memory(8 * shape.lanes, rounds * shape.beats), weights] * shape.centroids
    return sum(luts for luts, _ in found), sum(blocks for _, blocks in found)


def resources(shape: Shape, factors: Any = None) -> Resources:
    luts, blocks = _memories(shape)
    luts += round(float(np.dot(parts_of(shape), _factors() if factors is None else factors)))
    multipliers = shape.lanes * (shape.builders if shape.codec == "pq" else shape.units)
    if shape.lists:
        multipliers += shape.centroids * shape.lanes
    return Resources(luts, blocks, multipliers)


def fits(taken: Resources) -> bool:
    return taken.luts <= USABLE * WHOLE.luts and taken.blocks <= WHOLE.blocks and taken.multipliers <= WHOLE.multipliers


@dataclass(frozen=True, slots=True)
class ChipDesign:
    """A design for a way of searching, the parts of the chip that it takes, and its queries a second."""

    shape: Shape
    resources: Resources
    rate: float


def best(dim: int, code: int, lists: Sequence[int], results: int) -> ChipDesign:
    """The design that answers most queries of product-quantized codes of `code` bytes, with so many rows in each list
    that a query scans; then the one with the fewest look-up tables (FANNS)."""
    found: ChipDesign | None = None
    widths = [lanes for lanes in (1, 2, 4, 8) if dim // code % lanes == 0]
    builders = [count for count in (1, 2, 4, 8) if code % count == 0]
    for units in (1, 2, 4, 8, 16, 32):
        kept = queue_length(results, units)
        for lanes in widths:
            for count in builders:
                shape = Shape("pq", dim, code, units, results, kept, count, lanes)
                taken = resources(shape)
                if not fits(taken):
                    continue
                rate = GOAL / stages(shape, lists).slowest
                if found is None or (rate, -taken.luts) > (found.rate, -found.resources.luts):
                    found = ChipDesign(shape, taken, rate)
    if found is None:
        raise RangeError(
            f"no design for codes of {code} bytes and {results} results fits {USABLE:.0%} of the look-up tables and "
            f"the {WHOLE.blocks} memory blocks of {CHIP}"
        )
    return found
