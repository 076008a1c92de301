"""The search for an accelerator's units: as trying all of them, within the chip, and as published."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from edge.errors import RangeError
from edge.planner.search_accelerator import USABLE, SearchParameters, Units, design, logic, queries_per_second

TABLE_6_3 = [
    (SearchParameters(1e8, 4096, 5), Units(16, 5, 57, 2), 31_876),
    (SearchParameters(1e8, 8192, 17, True, 1.139, 10), Units(11, 9, 36, 2), 11_098),
    (SearchParameters(1e8, 16384, 33, True, 1.154, 100), Units(8, 5, 9, 1), 3_818),
]
SMALL = [
    SearchParameters(1e5, 256, 4, results=10, dim=64),
    SearchParameters(1e5, 1024, 16, True, 1.3, 80, 96, 24),
    SearchParameters(4e5, 64, 8, False, 1.1, 20, 384, 48),
]


@pytest.mark.parametrize("search", SMALL)
@pytest.mark.parametrize("usable", [0.32, 0.4])
def test_as_trying_all_units(search: SearchParameters, usable: float) -> None:
    """Rates that are tried rise in steps of 0.1 %, so that the choice may be slower by so much."""
    every = (Units(*counts) for counts in product(range(1, 13), range(1, 13), range(1, 26), (1, 2, 3)))
    fitting = [units for units in every if logic(search, units) <= usable]
    if not fitting:
        with pytest.raises(RangeError, match="does not fit the chip"):
            design(search, usable=usable)
        return
    found = design(search, usable=usable)
    assert found.rate == queries_per_second(search, found.units)
    assert found.logic == logic(search, found.units) <= usable
    assert found.rate >= 0.998 * max(queries_per_second(search, units) for units in fitting)


@pytest.mark.parametrize("row", range(3))
def test_published_designs_are_found_again(row: int) -> None:
    search, units, rate = TABLE_6_3[row]
    assert logic(search, units) <= USABLE, "the published design fits"
    found = design(search)
    assert found.rate >= 0.998 * queries_per_second(search, units)
    assert found.rate == pytest.approx(rate, rel=0.04)
    assert found.units.centroids == units.centroids
    assert found.units.tables == units.tables
    assert found.units.selecting == units.selecting
    assert found.units.scanning == pytest.approx(units.scanning, rel=0.16)


def test_the_bottleneck_gets_the_units() -> None:
    """As in the source's figure 6.8."""
    search = TABLE_6_3[0][0]

    def share(changed: SearchParameters, name: str) -> float:
        units = design(changed).units
        return float(getattr(units, name)) / (units.centroids + units.tables + units.scanning)

    assert share(replace(search, probed=50), "scanning") > share(replace(search, probed=2), "scanning")
    assert share(replace(search, lists=2**15), "centroids") > share(replace(search, lists=2**11), "centroids")
    assert logic(search, design(search).units) <= USABLE


def test_a_design_for_other_parameters_is_slower() -> None:
    """The units that suit one row are at least 1.3 times slower for another one, or do not fit."""
    slower = []
    for search, _, _ in TABLE_6_3:
        for other, _, _ in TABLE_6_3:
            units = design(other).units
            if other != search and logic(search, units) <= USABLE:
                slower.append(design(search).rate / queries_per_second(search, units))
    assert len(slower) >= 3
    assert min(slower) > 1
    assert max(slower) > 1.3


def test_queues_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RangeError, match="queues of 5000 results"):
        design(replace(TABLE_6_3[0][0], results=5000))
