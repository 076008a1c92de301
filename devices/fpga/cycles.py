"""The cycles of the accelerator, computed from its shape as the simulation counts them, and the published energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.devices.fpga.shape import CODES, Shape, levels


@dataclass(frozen=True, slots=True)
class StageCycles:
    """Cycles of each stage for one query by itself.

    Attributes:
        choice: distances to centroids and the selection of lists; 0 where the host chooses.
        tables: the query's beats, and its tables.
        scan: codes through the scoring units.
        emptying: the units' queues into the last one.
        results: the last queue settles and gives its rows.
    """

    choice: int
    tables: int
    scan: int
    emptying: int
    results: int

    @property
    def slowest(self) -> int:
        """Cycles between two queries in the long run. Scan and emptying exclude each other, as queues take no rows
        while they are emptied."""
        return max(self.choice, self.tables, self.scan + self.emptying, self.emptying + self.results)


def pipeline(shape: Shape) -> int:
    """Cycles from a row's last byte to its score in a queue."""
    return levels(shape.parts) + 3 if shape.codec == "pq" else levels(shape.lanes) + 5


def stages(shape: Shape, lists: Sequence[int]) -> StageCycles:
    """The stages of a query that scans lists of so many rows."""
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
    """Cycles until the last result of some queries that come one after the other, each with the rows of its lists. The
    latency of the memory, in cycles, delays the first query alone, since later words are asked for in time."""
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
"""Energy of a query: a fixed part and a part for each scanned byte, both divided by the number of queries that run
together, and a part for each scanned byte that is not divided. Calibrated: a least-squares fit to the twelve cells of
table 4.3 (Chameleon), with errors of at most 6 %."""


def joules(scanned: Sequence[float]) -> float:
    """Energy of some queries that run together, each of which scans so many bytes."""
    if not scanned:
        return 0.0
    nbytes = sum(scanned)
    return JOULES_EACH + JOULES_PER_BYTE * nbytes / len(scanned) + JOULES_TOGETHER * nbytes
