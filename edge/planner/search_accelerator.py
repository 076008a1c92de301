"""A search accelerator with pipelined stages: its constants, cycles, logic and energy, as published (FANNS and
Chameleon).

The form of the model is that of Jiang's thesis (chapters 6 and 4): a unit takes its latency and, for each further
input, its initiation interval. The slowest stage sets the rate. Measurements of a real design would replace the
constants, but no formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge.errors import RangeError


@dataclass(frozen=True, slots=True)
class Units:
    """Number of parallel units of each stage.

    Attributes:
        centroids: units that compute distances to whole vectors.
        tables: units that build look-up tables.
        scanning: units that decode and score codes; each feeds two queues of results.
        selecting: queues that keep the nearest lists.
    """

    centroids: int
    tables: int
    scanning: int
    selecting: int = 2

    def __post_init__(self) -> None:
        if min(self.centroids, self.tables, self.scanning, self.selecting) < 1:
            raise RangeError(f"every stage has at least one unit, not {self}")


FREQUENCY = 140e6
"""Cycles per second."""

COMPONENTS = 16
"""Components of a vector that a distance unit processes per interval."""

INTERVAL = 2
"""Cycles of one step of a distance unit, and of an insertion into a queue."""

SLICES, ENTRIES = 16, 256
"""Bytes of a code that a scanning unit looks up in one cycle, and entries of a table for each of these bytes."""

ROTATION_LATENCY, ROTATION_PRODUCTS = 37, 8
"""Cycles before the first product of a rotation, and products per cycle."""

DISTANCE_LATENCY, TABLE_LATENCY, LOAD_LATENCY = 138, 132 + 36, 2
"""Cycles before the first distance to a centroid, before the first entry of a table, and before a table's first entry
reaches the scanning units."""

SCAN_LATENCY = 63 + 1
"""Cycles of a list, in addition to those of its rows.

Frequency and intervals are printed in the thesis (chapter 6). The latencies are those of FANNS' published artifact, for
vectors of 128 dimensions and codes of 16 bytes."""

JOULES_EACH, JOULES_PER_BYTE, JOULES_TOGETHER = 11.5e-3, 1.38e-9, 1.21e-9
"""Energy of a query. The first two are a fixed part and a part for each scanned byte, both divided by the number of
queries that run together. The third is a part for each scanned byte that is not divided. Calibrated: a least-squares
fit to the twelve cells of table 4.3 (Chameleon), with errors of at most 6 %."""


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


def queues(units: Units) -> int:
    """Number of result queues. A queue takes a result every second cycle, so each scanning unit feeds two."""
    return 2 * units.scanning


def stage_cycles(search: SearchParameters, units: Units) -> dict[str, float]:
    """Cycles of each stage for one query that the accelerator answers by itself, with queues of full length."""
    rows = search.probed * search.scan_ratio * search.vectors / search.lists
    dim = search.dim
    cycles = {
        "centroid distances": distance_cycles(search.lists, dim, units),
        "list selection": INTERVAL * search.lists / units.selecting,
        **scanning_cycles(Scanned(search.probed, rows, dim, search.code, search.probed, search.results), units),
    }
    turning = 2 * dim + ROTATION_LATENCY + dim**2 / ROTATION_PRODUCTS
    return {"rotation": turning, **cycles} if search.rotated else cycles


def distance_cycles(rows: float, dim: int, units: Units) -> float:
    """Cycles to compute the distances to `rows` whole vectors."""
    return DISTANCE_LATENCY + INTERVAL * math.ceil(dim / COMPONENTS * rows / units.centroids)


def scanning_cycles(load: Scanned, units: Units) -> dict[str, float]:
    """Cycles to build tables, scan, and select for one query.

    A code that is longer than the slices of a scanning unit takes several cycles.
    """
    selection = INTERVAL * load.rows / queues(units) + emptying_cycles(load, units)
    if load.exact:
        return {"scan": distance_cycles(load.rows, load.dim, units), "selection": selection}
    passes = math.ceil(load.code / SLICES)
    table = TABLE_LATENCY + load.code * ENTRIES
    loading = LOAD_LATENCY + passes * ENTRIES + units.scanning - 1
    return {
        "tables": load.dim + math.ceil(load.tables / units.tables) * table,
        "scan": load.tables * loading + load.lists * SCAN_LATENCY + passes * load.rows / units.scanning,
        "selection": selection,
    }


def emptying_cycles(load: Scanned, units: Units) -> float:
    """Cycles to move the results of a query's queues into the one queue that they lead to."""
    return INTERVAL * queues(units) * load.kept


def queries_per_second(search: SearchParameters, units: Units) -> float:
    """Queries per second, which the slowest stage determines."""
    return FREQUENCY / max(stage_cycles(search, units).values())


def joules(loads: Sequence[Scanned]) -> float:
    """Energy of some queries that run together, in joules."""
    scanned = sum(load.nbytes for load in loads)
    alone = JOULES_EACH + (JOULES_PER_BYTE * scanned / len(loads) if loads else 0.0)
    return alone + JOULES_TOGETHER * scanned if loads else 0.0


# The search for the parallel units that answer most queries per second. FANNS tries every combination of units that
# fits the chip. Here a rate is assumed, each stage gets the fewest units that reach it, and the largest rate whose
# units fit is the answer: stages do not influence each other otherwise.

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


def design(search: SearchParameters, *, usable: float = USABLE) -> Design:
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
        cycles = stage_cycles(search, units)
        bound = max(cycles["scan"], cycles["selection"], cycles.get("rotation", 0.0))
        low, high = bound, bound
        while (found := _fitted(search, scanning, high, usable)) is None:
            low, high = high, 1.3 * high
        while high > _PRECISION * low:  # a longer time never needs more units
            middle = (low * high) ** 0.5
            fitted = _fitted(search, scanning, middle, usable)
            low, high, found = (middle, high, found) if fitted is None else (low, middle, fitted)
        candidate = Design(found, queries_per_second(search, found), logic(search, found))
        if best is None or (candidate.rate, -candidate.logic) > (best.rate, -best.logic):
            best = candidate
    if best is None:
        raise RangeError(f"one unit of each stage with queues of {search.results} results does not fit the chip")
    return best


def _fitted(search: SearchParameters, scanning: int, bound: float, usable: float) -> Units | None:
    """The fewest units beside `scanning` ones whose stages take at most `bound` cycles; None if they do not fit."""
    units = Units(centroids=1, tables=1, scanning=scanning, selecting=1)
    for name, stage in (
        ("centroids", "centroid distances"), ("selecting", "list selection"), ("tables", "tables"),
    ):  # fmt: skip
        low, high = 1, _MOST
        if stage_cycles(search, replace(units, **{name: high}))[stage] > bound:
            return None
        while low < high:  # more units never make a stage slower
            middle = (low + high) // 2
            if stage_cycles(search, replace(units, **{name: middle}))[stage] <= bound:
                high = middle
            else:
                low = middle + 1
        units = replace(units, **{name: low})
    return units if logic(search, units) <= usable else None


# Retrieval on several searchers (Chameleon; Jiang's thesis, chapter 4). Truncated priority queues are the shortest
# result queues that the searchers need (section 4.3). `Alternation` divides devices into those that generate and those
# that retrieve (section 4.6.3).


def _exactly(results: int, queues: int, count: int) -> float:
    """Probability that a given queue gets exactly `count` of the best `results`."""
    if queues == 1:
        return float(count == results)
    ways = math.lgamma(results + 1) - math.lgamma(count + 1) - math.lgamma(results - count + 1)
    return math.exp(ways - count * math.log(queues) + (results - count) * math.log1p(-1 / queues))


def queue_length(results: int, queues: int, *, confidence: float = 0.99) -> int:
    """The shortest length of the queues at which a share `confidence` of all queries loses none of the best `results`.

    It follows from the union bound, which adds the probabilities of the single queues to drop a result. It holds only
    if each list is spread evenly over the searchers. If a list is in one place, near results are together, and nothing
    bounds their number in one queue.

    Raises:
        RangeError: there are no results or queues, or the confidence is not between 0 and 1.
    """
    if results < 1 or queues < 1 or not 0 < confidence < 1:
        raise RangeError(f"{results} results, {queues} queues and a confidence of {confidence} have no queue length")
    more = 0.0
    for count in range(results, 1, -1):  # the smallest probabilities are added first, so the sum is exact
        more += _exactly(results, queues, count)
        if queues * more > 1 - confidence:
            return count
    return 1


@dataclass(frozen=True, slots=True)
class Alternation:
    """Generation that waits for a retrieval every `interval` tokens.

    Attributes:
        batch: number of sequences generated at a time.
        step: seconds to write one token for the batch on one device.
        retrieval: seconds to retrieve for the batch on one device.
    """

    interval: int
    batch: int
    step: float
    retrieval: float

    def __post_init__(self) -> None:
        if min(self.interval, self.batch, self.step, self.retrieval) <= 0:
            raise RangeError("interval, batch and both times are above 0")

    def throughput(self, generating: int, retrieving: int) -> float:
        """Tokens per second. A generating device waits while it retrieves, and the slower side sets the rate."""
        tokens = self.interval * self.batch
        write = tokens * generating / (self.interval * self.step + self.retrieval)
        return min(write, tokens * retrieving / self.retrieval)

    @property
    def generating_share(self) -> float:
        """The best share of generating devices, between a half and one."""
        generation = self.interval * self.step
        return (generation + self.retrieval) / (generation + 2 * self.retrieval)

    def efficiency(self, share: float) -> float:
        """Throughput if this share of many devices generates, as a part of the highest throughput.

        Raises:
            RangeError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise RangeError(f"a share of devices is between 0 and 1, not {share}")
        generation = self.interval * self.step
        rate = min(share / (generation + self.retrieval), (1 - share) / self.retrieval)
        return rate * (generation + 2 * self.retrieval)

    def divided(self, devices: int) -> tuple[int, int]:
        """The best numbers of generating and of retrieving devices.

        Raises:
            RangeError: there are fewer than two devices.
        """
        if devices < 2:
            raise RangeError(f"two devices at least are needed to divide them, not {devices}")
        near = int(self.generating_share * devices)
        candidates = {min(max(1, count), devices - 1) for count in (near, near + 1)}
        best = max(sorted(candidates), key=lambda count: self.throughput(count, devices - count))
        return best, devices - best
