"""The parameters of a design, the numbers that units and host share, its cycles as simulated, and the energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


def stages(shape: Shape, lists: Sequence[int]) -> StageCycles:
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
    scan = max(1, held[0]) * shape.row_words
    results = shape.results + 1 + max(1, min(shape.results, sum(kept)))
    return StageCycles(choice, tables, scan, shape.kept + drained, results)


def cycles(shape: Shape, queries: Sequence[Sequence[int]], latency: int = 0) -> int:
    """Cycles until the last result of queries that come one after the other, each with the rows of its lists. The
    memory's latency delays the first alone."""
    depth = pipeline(shape)
    built, scanned = [0, 0], [0, 0]
    chosen = emptied = given = 0
    for lists in queries:
        own = stages(shape, lists)
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
