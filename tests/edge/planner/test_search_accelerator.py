"""The accelerator's formulas by hand: each stage, queues, energy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.errors import RangeError
from edge.planner.search_accelerator import (
    JOULES_EACH,
    JOULES_PER_BYTE,
    JOULES_TOGETHER,
    USABLE,
    Scanned,
    SearchParameters,
    Units,
    joules,
    logic,
    queries_per_second,
    scanning_cycles,
    stage_cycles,
)

TABLE_6_3 = [
    (SearchParameters(1e8, 4096, 5), Units(16, 5, 57, 2)),
    (SearchParameters(1e8, 8192, 17, True, 1.139, 10), Units(11, 9, 36, 2)),
    (SearchParameters(1e8, 16384, 33, True, 1.154, 100), Units(8, 5, 9, 1)),
]

LARGEST = Units(centroids=16, tables=5, scanning=57)
"""The published design with the most scanning units."""


def test_each_stage_by_hand() -> None:
    """The first design of table 6.3, with rotation."""
    search, units = replace(TABLE_6_3[0][0], rotated=True, scan_ratio=1.2), TABLE_6_3[0][1]
    cycles = stage_cycles(search, units)
    assert list(cycles) == ["rotation", "centroid distances", "list selection", "tables", "scan", "selection"]
    rows = 1.2 * 1e8 / 4096 * 5
    assert cycles["rotation"] == 128 + 37 + 128 * 128 / 8 + 128
    assert cycles["centroid distances"] == 138 + 2 * (8 * 4096 // 16)
    assert cycles["list selection"] == 2 * 4096 / 2
    assert cycles["tables"] == 128 + 1 * (132 + 36 + 4096)
    assert cycles["scan"] == pytest.approx(5 * ((2 + 256 + 57 - 1) + (63 + 1)) + rows / 57)
    assert cycles["selection"] == pytest.approx(2 * (rows / 114 + 114 * 1))


@pytest.mark.parametrize(("row", "slowest"), [(0, "tables"), (1, "scan"), (2, "scan")])
def test_the_published_designs_never_wait_for_their_queues(row: int, slowest: str) -> None:
    """The stages that the published rates were not fitted to are faster than the slowest, with the published units."""
    cycles = stage_cycles(*TABLE_6_3[row])
    assert max(cycles, key=cycles.__getitem__) == slowest
    with_fewer = replace(TABLE_6_3[row][1], selecting=1)
    assert stage_cycles(TABLE_6_3[row][0], with_fewer)["list selection"] == 2 * TABLE_6_3[row][0].lists


def test_more_results_move_the_bottleneck_to_the_selection() -> None:
    def share(results: int) -> float:
        cycles = stage_cycles(replace(TABLE_6_3[0][0], results=results), TABLE_6_3[0][1])
        return cycles["selection"] / sum(cycles.values())

    shares = [share(results) for results in (1, 10, 100)]
    assert shares == sorted(shares)
    assert shares[2] > 2 * shares[0]


def test_no_published_design_serves_another_row_as_well() -> None:
    """The units of another row are slower, or do not fit the chip with the queues that this row needs."""
    for search, units in TABLE_6_3:
        for _, other in TABLE_6_3:
            if other == units:
                continue
            fits = logic(search, other) <= USABLE
            assert not fits or queries_per_second(search, units) > 1.3 * queries_per_second(search, other)


def test_long_codes_take_several_passes_of_the_slices() -> None:
    short = scanning_cycles(Scanned(1, 57_000, 128, 16, 1, 5), LARGEST)
    long = scanning_cycles(Scanned(1, 57_000, 128, 33, 1, 5), LARGEST)
    assert short["scan"] == (2 + 256 + 56) + 64 + 1000
    assert long["scan"] == (2 + 3 * 256 + 56) + 64 + 3 * 1000
    assert long["tables"] - short["tables"] == 17 * 256
    assert long["selection"] == short["selection"] == 2 * (57_000 / 114 + 114 * 5)


def test_a_table_for_each_list_costs_more_than_one_for_all() -> None:
    one, each = (scanning_cycles(Scanned(12, 1000, 128, 16, tables, 5), LARGEST) for tables in (1, 12))
    assert each["tables"] == 128 + 3 * 4264  # five units build twelve tables
    assert each["scan"] - one["scan"] == 11 * (2 + 256 + 56)


def test_vectors_are_scored_by_the_distance_units() -> None:
    cycles = scanning_cycles(Scanned(3, 1600, 64, 256, 1, 5), LARGEST)
    assert cycles == {"scan": 138 + 2 * 4 * 100, "selection": 2 * (1600 / 114 + 114 * 5)}


MILLIJOULES = {
    16: [(53.6, 28.2, 21.5), (52.3, 26.9, 20.5)], 32: [(95.6, 55.0, 41.1)], 64: [(170.1, 107.8, 85.2)],
}  # fmt: skip
"""Of a query, by bytes of a code and queries at a time (1, 4, 16): thesis, table 4.3. A query scans a million codes."""


def test_energy_is_within_6_percent_of_the_twelve_published_cells() -> None:
    """Calibrated: the three numbers are the least squares of these very cells."""
    rows = [(code, batch, cell) for code, sets in MILLIJOULES.items() for cells in sets
            for batch, cell in zip((1, 4, 16), cells, strict=True)]  # fmt: skip
    for code, batch, cell in rows:
        loads = [Scanned(32, 1e6, 128, code, 32, 10)] * batch
        assert 1e3 * joules(loads) / batch == pytest.approx(cell, rel=0.06)
    nbytes, batches, cells = (np.array(column, float) for column in zip(*rows, strict=True))
    nbytes *= 1e6
    terms = np.stack((1 / batches, nbytes / batches, nbytes), axis=1) / cells[:, None]
    fitted = 1e-3 * np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)[0]
    ours = (JOULES_EACH, JOULES_PER_BYTE, JOULES_TOGETHER)
    assert fitted == pytest.approx(ours, rel=0.005)
    assert joules([]) == 0


def test_every_stage_has_a_unit() -> None:
    for stage in ("centroids", "tables", "scanning", "selecting"):
        with pytest.raises(RangeError):
            replace(LARGEST, **{stage: 0})
