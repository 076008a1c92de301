"""The constants of a search accelerator, for the model in `search_accelerator`.

Measurements of a real design would replace these constants, but no formula.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class AcceleratorNumbers:
    """The constants of a design that the formulas need.

    Attributes:
        frequency: cycles per second.
        components: components of a vector that a distance unit processes per interval.
        interval: cycles of one step of a distance unit, and of an insertion into a queue.
        slices: bytes of a code that a scanning unit looks up in one cycle.
        entries: entries of a look-up table for each byte of a code.
        rotation_latency, rotation_products: cycles before the first product, and products per cycle.
        distance_latency: cycles before the first distance to a centroid.
        table_latency: cycles before the first entry of a table.
        load_latency: cycles before a table's first entry reaches the scanning units.
        scan_latency: cycles of a list, in addition to those of its rows.
        queue_logic: shares of the chip's logic for the control of all result queues, and for each place in them.
        usable: share of the chip that a design may use before its wiring fails.
        joules_each, joules_per_byte, joules_together: energy of a query. The first two are a fixed part and a part for
            each scanned byte, both divided by the number of queries that run together. The third is a part for each
            scanned byte that is not divided.
    """

    frequency: float
    components: int
    interval: int
    slices: int
    entries: int
    rotation_latency: int
    rotation_products: int
    distance_latency: int
    table_latency: int
    load_latency: int
    scan_latency: int
    queue_logic: tuple[float, float]
    usable: float
    joules_each: float
    joules_per_byte: float
    joules_together: float


PUBLISHED = AcceleratorNumbers(
    frequency=140e6,
    components=16,
    interval=2,
    slices=16,
    entries=256,
    rotation_latency=37,
    rotation_products=8,
    distance_latency=138,
    table_latency=132 + 36,
    load_latency=2,
    scan_latency=63 + 1,
    queue_logic=(0.01045, 0.0001613),
    usable=0.6,
    joules_each=11.5e-3,
    joules_per_byte=1.38e-9,
    joules_together=1.21e-9,
)
"""Frequency, intervals and `usable` are printed in the thesis (chapter 6). The latencies are those of FANNS' published
artifact, for vectors of 128 dimensions and codes of 16 bytes. `queue_logic` solves two cells of table 6.3 (2.9 % for
114 queues of one result each, 31.7 % for 18 queues of a hundred), so those two are circular. The joules are calibrated:
they are a least-squares fit to the twelve cells of table 4.3 (Chameleon), with errors of at most 6 %."""

LARGEST = Units(centroids=16, tables=5, scanning=57)
"""The design of table 6.3 with the most scanning units."""
