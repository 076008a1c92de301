"""A measured curve keeps to the measurements, between the points and beyond them."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edge.errors import InputError
from edge.planner.measured import Curve

POINTS = st.dictionaries(st.integers(1, 500), st.floats(0, 100), min_size=1, max_size=8)


@given(points=POINTS, count=st.integers(0, 600))
def test_it_goes_through_the_points_and_never_falls(points: dict[int, float], count: int) -> None:
    curve = Curve.measured(list(points.items()))
    for at, seconds in points.items():
        assert curve(at) >= seconds, "no less is promised than was measured"
    assert curve(count) <= curve(count + 1) + 1e-12


@given(st.integers(0, 64))
def test_between_the_points_it_is_linear(count: int) -> None:
    curve = Curve((1, 4, 20), (1.0, 5.0, 6.0))
    if 1 <= count <= 20:
        assert curve(count) == pytest.approx(np.interp(count, curve.counts, curve.seconds))
    elif count > 20:
        assert curve(count) == pytest.approx(6.0 + (count - 20) / 16)
    else:
        assert curve(count) == 1.0


def test_noise_is_flattened_upwards() -> None:
    assert Curve.measured([(4, 3.0), (1, 5.0), (2, 4.0), (8, 9.0)]).seconds == (5.0, 5.0, 5.0, 9.0)


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [((), ()), ((1, 1), (1.0, 2.0)), ((2, 1), (1.0, 2.0)), ((1, 2), (2.0, 1.0)), ((1,), (-1.0,)), ((1,), (1.0, 2.0))],
)
def test_what_is_no_curve_is_refused(counts: tuple[int], seconds: tuple[float]) -> None:
    with pytest.raises(InputError, match="a curve needs"):
        Curve(counts, seconds)
