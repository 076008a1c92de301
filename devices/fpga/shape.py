"""The parameters of a design, its cycles as simulated, its energy, and what it takes of an ECP5. The factors of
look-up tables are fitted to synthesized designs (`synthesized.json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.devices.searchers import queue_length
from edge.errors import RangeError

ENTRY = 16
"""Bits of an entry of a look-up table, and of a weight."""

CODES = 256
"""Values of a byte of a code."""

ADDRESS = 24
"""Bits of the address of a word of codes, and of a row's number."""

SCORE = 24
"""Bits of a score."""


def levels(inputs: int) -> int:
    """Levels of a tree of additions, which are the cycles that it takes."""
    return math.ceil(math.log2(inputs)) if inputs > 1 else 0


def address_bits(count: int) -> int:
    """Bits of the numbers of so many words; at least one."""
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class KeyForm:
    """A row with its score as one number that is larger for a better row: the score raised to be positive, then the
    complement of the row's number. Zero stands for no row."""

    score: int
    row: int

    @property
    def width(self) -> int:
        return self.score + self.row

    def of(self, score: int, row: int) -> int:
        return (score + (1 << self.score - 1)) << self.row | (~row & self.no_row)

    def parts(self, key: int) -> tuple[int, int]:
        return (key >> self.row) - (1 << self.score - 1), ~key & self.no_row

    @property
    def no_row(self) -> int:
        return (1 << self.row) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a design.

    `codec` is `pq`, or `bytes` for weighted sums (SQ8, rounded vectors). `units` score side by side; `results` and
    `kept` are places of the last and of each unit's queue; `builders` build equal shares of the tables; `lanes` are
    components a cycle. `lists`, `probed`: those on the chip and per query (0 where the host chooses); `centroids` units
    compute their distances."""

    codec: str
    dim: int
    parts: int
    units: int
    results: int
    kept: int
    builders: int = 1
    lanes: int = 1
    lists: int = 0
    probed: int = 0
    centroids: int = 1

    def __post_init__(self) -> None:
        if self.units < 1 or self.units & (self.units - 1):
            raise RangeError(f"units are a power of two, not {self.units}")
        if min(self.results, self.kept, self.lanes, self.builders) < 1:
            raise RangeError(f"there is at least one result, place, lane and table builder, not {self}")
        step = self.lanes if self.codec == "bytes" else self.lanes * self.parts
        if self.dim % step or (self.codec == "pq" and self.parts % self.builders):
            raise RangeError(f"{self.dim} components cannot be divided as {self} says")

    @property
    def beats(self) -> int:
        return self.dim // self.lanes

    @property
    def row_words(self) -> int:
        """Words of memory that hold a row of every unit."""
        return 1 if self.codec == "pq" else self.beats

    @property
    def word(self) -> int:
        """Bits of a word of memory: for each unit the bytes of one beat, and a bit that says whether the row counts."""
        return self.units * (8 * (self.parts if self.codec == "pq" else self.lanes) + 1)

    @property
    def keys(self) -> KeyForm:
        return KeyForm(SCORE, ADDRESS)


@dataclass(frozen=True, slots=True)
class StageCycles:
    """Cycles of each stage for one query by itself: distances and selection of lists, beats and tables, codes, the
    units' queues, and the last queue."""

    choice: int
    tables: int
    scan: int
    emptying: int
    results: int

    @property
    def slowest(self) -> int:
        """Cycles between two queries in the long run. Queues take no rows while they are emptied."""
        return max(self.choice, self.tables, self.scan + self.emptying, self.emptying + self.results)


def pipeline(shape: Shape) -> int:
    """Cycles from a row's last byte to its score in a queue."""
    return levels(shape.parts) + 3 if shape.codec == "pq" else levels(shape.lanes) + 5


def stages(shape: Shape, lists: Sequence[int], bus: int = 0) -> StageCycles:
    """The cycles for lists of so many rows, with a memory of codes that gives `bus` bits a cycle, or with 0 a word."""
    held = [sum((rows + shape.units - 1 - unit) // shape.units for rows in lists) for unit in range(shape.units)]
    kept = [min(shape.kept, rows) for rows in held]
    drained = sum(max(1, rows) for rows in kept)  # an empty queue says so
    choice = 0
    if shape.lists:
        rounds = -(-shape.lists // shape.centroids)
        moved = shape.centroids * min(shape.probed, rounds)
        choice = shape.beats + rounds * shape.beats + levels(shape.lanes) + 9 + shape.probed + moved + shape.probed
    if shape.codec == "pq":
        share = shape.beats // shape.builders
        tables = share + CODES * share + levels(shape.lanes) + 8
    else:
        tables = shape.beats + 2
    # Unit 0 has the first row of each group.
    scan = max(1, held[0]) * shape.row_words * (-(-shape.word // bus) if bus else 1)
    results = shape.results + 1 + max(1, min(shape.results, sum(kept)))
    return StageCycles(choice, tables, scan, shape.kept + drained, results)


def cycles(shape: Shape, queries: Sequence[Sequence[int]], latency: int = 0, bus: int = 0) -> int:
    """Cycles until the last result of queries that come one after the other, each with the rows of its lists. The
    memory's latency delays the first alone; `bus`: see `stages`."""
    depth = pipeline(shape)
    built, scanned = [0, 0], [0, 0]
    chosen = emptied = given = 0
    for lists in queries:
        own = stages(shape, lists, bus)
        chosen += own.choice
        # The tables of a query replace those of the query before the last.
        built.append(max(built[-1], scanned[-2]) + own.tables)
        begin = max(built[-1], scanned[-1], chosen + latency)
        # While the queues are emptied, the pipeline fills and then waits.
        scored = max(begin + own.scan + depth, emptied + own.scan)
        scanned.append(scored - depth)
        moving = own.emptying - shape.kept
        emptied = max(scored + shape.kept, given) + moving
        given = emptied + own.results
    return given


JOULES_EACH, JOULES_PER_BYTE, JOULES_TOGETHER = 11.5e-3, 1.38e-9, 1.21e-9
"""Energy of a query: a fixed part and one for each scanned byte, divided by the queries that run together, and one that
is not. Calibrated on table 4.3 (Chameleon), errors of at most 6 %."""


def joules(scanned: Sequence[float]) -> float:
    """Energy of some queries that run together, each of which scans so many bytes."""
    if not scanned:
        return 0.0
    nbytes = sum(scanned)
    return JOULES_EACH + JOULES_PER_BYTE * nbytes / len(scanned) + JOULES_TOGETHER * nbytes


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
"""Cycles per second that constraints ask for and times assume. Boards were placed at 80e6 to 97e6."""

BUS = 128
"""Bits that the memory of codes gives in a cycle. DDR3 of 16 bits at 400 MHz, as beside this chip, would give 142."""

_BLOCK_BITS = 1 << 14
"""Bits of a memory block without its parity bits, which these words do not use."""

_BLOCK_WIDTH = 32

_SHALLOW = 32
"""Words up to which yosys makes a memory of look-up tables: four of them hold 16 words of 4 bits."""

REPORTS = Path(__file__).with_name("synthesized.json")


@dataclass(frozen=True, slots=True)
class Synthesized:
    shape: Shape
    resources: Resources


@cache
def reports() -> tuple[Synthesized, ...]:
    return tuple(
        Synthesized(Shape(**row["shape"]), Resources(**row["resources"]))
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


def refusal(shape: Shape) -> str | None:
    """Why a design does not fit the chip; None if it does."""
    taken = resources(shape)
    if fits(taken):
        return None
    return (
        f"{taken.luts:,} of {USABLE * WHOLE.luts:,.0f} look-up tables, {taken.blocks} of {WHOLE.blocks} memory blocks "
        f"and {taken.multipliers} of {WHOLE.multipliers} multipliers"
    )


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
                rate = GOAL / stages(shape, lists, BUS).slowest
                if found is None or (rate, -taken.luts) > (found.rate, -found.resources.luts):
                    found = ChipDesign(shape, taken, rate)
    if found is None:
        raise RangeError(
            f"no design for codes of {code} bytes and {results} results fits {USABLE:.0%} of the look-up tables and "
            f"the {WHOLE.blocks} memory blocks of {CHIP}"
        )
    return found
