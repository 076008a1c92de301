"""Cycles, resources and energy of a search accelerator with pipelined stages (FANNS and Chameleon).

The form of the model is that of Jiang's thesis (chapters 6 and 4): a unit takes its latency and, for each further
input, its initiation interval. The slowest stage sets the rate. The constants are in `edge.planner.accelerator`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edge.errors import RangeError
from edge.planner.accelerator import PUBLISHED, AcceleratorNumbers, Units
from edge.planner.truncated_queues import queue_length

FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """An index, and the way it is searched.

    Attributes:
        vectors, lists, probed: vectors in the index, lists of the index, and lists probed per query.
        rotated: whether queries are rotated first (OPQ).
        scan_ratio: mean size of a probed list over that of all lists; above 1, because large lists are
            probed more often.
        results: number of results wanted.
        dim: dimensions of the vectors.
        code: bytes of a code.
    """

    vectors: float
    lists: int
    probed: int
    rotated: bool = False
    scan_ratio: float = 1.0
    results: int = 1
    dim: int = 128
    code: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.probed <= self.lists or self.vectors < 1 or self.scan_ratio < 1:
            raise RangeError(f"{self.probed} of {self.lists} lists cannot be probed, or the scan ratio is below 1")


@dataclass(frozen=True, slots=True)
class Scanned:
    """The work of one query in the stages that scan lists.

    Attributes:
        lists, rows: number of lists and of rows scanned.
        dim: dimensions of the vectors.
        code: bytes of a row's code. A row of `FLOAT_NBYTES * dim` bytes is the vector itself.
        tables: number of look-up tables built: one for each list if codes are differences from its centroid, else one.
        kept: places of each queue of results.
    """

    lists: int
    rows: float
    dim: int
    code: int
    tables: int
    kept: int

    @property
    def nbytes(self) -> float:
        """Bytes of the rows."""
        return self.rows * self.code

    @property
    def exact(self) -> bool:
        """Whether the rows are vectors. They then need no table, and the distance units score them."""
        return self.code == FLOAT_NBYTES * self.dim


def bitonic_cycles(width: int) -> int:
    """Cycles to sort `width` inputs (a power of two) in a bitonic network."""
    steps = width.bit_length() - 1
    return steps * (1 + steps) // 2


def queues(units: Units) -> int:
    """Number of result queues. A queue takes a result every second cycle, so each scanning unit feeds two."""
    return 2 * units.scanning


def stage_cycles(search: SearchParameters, units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> dict[str, float]:
    """Cycles of each stage for one query that the accelerator answers by itself, with queues of full length."""
    rows = search.probed * search.scan_ratio * search.vectors / search.lists
    dim = search.dim
    cycles = {
        "centroid distances": distance_cycles(search.lists, dim, units, numbers),
        "list selection": numbers.interval * search.lists / units.selecting,
        **scanning_cycles(
            Scanned(search.probed, rows, dim, search.code, search.probed, search.results), units, numbers
        ),
    }
    turning = 2 * dim + numbers.rotation_latency + dim**2 / numbers.rotation_products
    return {"rotation": turning, **cycles} if search.rotated else cycles


def distance_cycles(rows: float, dim: int, units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> float:
    """Cycles to compute the distances to `rows` whole vectors."""
    return numbers.distance_latency + numbers.interval * math.ceil(dim / numbers.components * rows / units.centroids)


def scanning_cycles(load: Scanned, units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> dict[str, float]:
    """Cycles to build tables, scan, and select for one query.

    A code that is longer than the slices of a scanning unit takes several cycles.
    """
    selection = numbers.interval * load.rows / queues(units) + emptying_cycles(load, units, numbers)
    if load.exact:
        return {"scan": distance_cycles(load.rows, load.dim, units, numbers), "selection": selection}
    passes = math.ceil(load.code / numbers.slices)
    table = numbers.table_latency + load.code * numbers.entries
    loading = numbers.load_latency + passes * numbers.entries + units.scanning - 1
    return {
        "tables": load.dim + math.ceil(load.tables / units.tables) * table,
        "scan": load.tables * loading + load.lists * numbers.scan_latency + passes * load.rows / units.scanning,
        "selection": selection,
    }


def emptying_cycles(load: Scanned, units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> float:
    """Cycles to move the results of a query's queues into the one queue that they lead to."""
    return numbers.interval * queues(units) * load.kept


def queries_per_second(search: SearchParameters, units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> float:
    """Queries per second, which the slowest stage determines."""
    return numbers.frequency / max(stage_cycles(search, units, numbers).values())


def seconds(loads: Sequence[Scanned], units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> float:
    """Seconds until the last of some queries is answered.

    Queries follow one another through the stages, so that each query after the first adds the time of its slowest
    stage. Queues receive rows during the scan; they take time of their own only when they are emptied.
    """
    if not loads:
        return 0.0
    stages = [scanning_cycles(load, units, numbers) for load in loads]
    first = stages[0].get("tables", 0) + stages[0]["scan"] + emptying_cycles(loads[0], units, numbers)
    return (first + sum(max(each.values()) for each in stages[1:])) / numbers.frequency


def joules(loads: Sequence[Scanned], numbers: AcceleratorNumbers = PUBLISHED) -> float:
    """Energy of some queries that run together, in joules."""
    scanned = sum(load.nbytes for load in loads)
    alone = numbers.joules_each + (numbers.joules_per_byte * scanned / len(loads) if loads else 0.0)
    return alone + numbers.joules_together * scanned if loads else 0.0


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts of the chip that a design uses, as far as the published numbers tell.

    Attributes:
        kept: places of each queue of results.
        logic: share of the chip's logic for these queues and for the one that they lead to.
        table_nbytes: bytes of memory on the chip for the tables of all scanning units.
    """

    kept: int
    logic: float
    table_nbytes: int


def resources(
    units: Units, results: int, numbers: AcceleratorNumbers = PUBLISHED, *, kept: int | None = None
) -> Resources:
    """The resources of a design whose queues are as short as the bound allows (see `truncated_queues`).

    Args:
        results: number of results wanted.
        kept: places of each queue, instead of the shortest number.

    Raises:
        RangeError: the queues need more of the chip than is usable.
    """
    kept = queue_length(results, queues(units)) if kept is None else kept
    fixed, place = numbers.queue_logic
    logic = fixed + place * (queues(units) * kept + results)
    if logic > numbers.usable:
        raise RangeError(
            f"{queues(units)} queues of {kept} results take {logic:.0%} of the chip's logic, and at most "
            f"{numbers.usable:.0%} of it can be used"
        )
    return Resources(kept, logic, units.scanning * numbers.slices * numbers.entries * FLOAT_NBYTES)


def most_results(units: Units, numbers: AcceleratorNumbers = PUBLISHED) -> int:
    """The largest number of results that one pass over the rows can keep. For more, the queues do not fit the chip.

    Raises:
        RangeError: the queues for a single result do not fit.
    """
    resources(units, 1, numbers)
    few, many = 1, int(numbers.usable / numbers.queue_logic[1])
    while few < many:
        middle = (few + many + 1) // 2
        try:
            resources(units, middle, numbers)
            few = middle
        except RangeError:
            many = middle - 1
    return few
