"""The mean follows its readings, and two deviations above it lie nearly all of them."""

from __future__ import annotations

import numpy as np
import pytest

from edge.scheduling.predictor import RunningMean


def test_the_first_readings_count_fully() -> None:
    expected = RunningMean()
    assert (expected.mean, expected.upper) == (0.0, 0.0)
    readings = [3.0, 5.0, 1.0, 7.0]
    for count, reading in enumerate(readings, 1):
        expected.add(reading)
        assert expected.mean == pytest.approx(np.mean(readings[:count]))
        assert expected.upper == pytest.approx(np.mean(readings[:count]) + 2 * np.std(readings[:count]))


def test_what_is_taken_for_granted_counts_as_readings() -> None:
    expected = RunningMean(1.0, 0.5, count=3)
    assert expected.upper == pytest.approx(2.0)
    expected.add(3.0)
    assert expected.mean == pytest.approx(1.5)


def test_old_readings_are_forgotten() -> None:
    expected = RunningMean()
    for reading in [100.0] * 20 + [1.0] * 100:
        expected.add(reading)
    assert expected.mean == pytest.approx(1.0, abs=0.01)
    assert expected.upper < 1.1


def test_few_readings_exceed_it() -> None:
    random = np.random.default_rng(3)
    expected = RunningMean()
    above = 0
    for turn, reading in enumerate(random.normal(10, 2, 500).tolist()):
        above += turn > 20 and reading > expected.upper
        expected.add(reading)
    assert above < 40
