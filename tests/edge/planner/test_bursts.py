"""Bursts in micro-batches."""

from __future__ import annotations

from itertools import product

import pytest

from edge.errors import RangeError
from edge.planner.schedule import BurstStage, best_micro_batch, burst_times


def even(devices: int, seconds: float = 1.0) -> BurstStage:
    """A stage whose time grows with its batch."""
    return BurstStage(lambda batch: seconds * batch, devices)


def flat(devices: int, seconds: float = 1.0) -> BurstStage:
    return BurstStage(lambda batch: seconds, devices)


@pytest.mark.parametrize(("burst", "saved"), [(2, 0.25), (4, 0.375), (8, 0.4375), (16, 0.46875), (32, 0.484375)])
def test_one_stage_that_scales_saves_what_the_closed_form_says(burst: int, saved: float) -> None:
    """1 - (B + 1) / 2B: near the published row of 10 million tokens, 22.5 / 36.6 / 44.4 / 48.4 / 50.2 percent."""
    batch, seconds, whole = best_micro_batch([even(0)], burst)
    assert batch == 1
    assert 1 - seconds / whole == pytest.approx(saved)


def test_two_equal_stages_may_save_more_than_half() -> None:
    _, seconds, whole = best_micro_batch([even(0), even(1)], 32)
    assert 0.5 < 1 - seconds / whole < 0.727


def test_a_stage_that_takes_as_long_for_one_as_for_many_is_not_split() -> None:
    assert best_micro_batch([flat(0)], 16) == (16, 1.0, 1.0)


def test_the_deepest_stage_first_is_never_worse() -> None:
    for sizes in product((1, 2, 4), repeat=3):
        stages = [even(0, 1.0), even(0, 0.5), even(0, 2.0)]
        deep = sum(burst_times(stages, 8, sizes))
        shallow = sum(burst_times(stages, 8, sizes, deepest_first=False))
        assert deep <= shallow
    assert sum(burst_times([even(0), even(0)], 4, [1, 1])) < sum(
        burst_times([even(0), even(0)], 4, [1, 1], deepest_first=False)
    )


def test_stages_of_one_group_take_turns_and_others_overlap() -> None:
    assert burst_times([even(0), even(0)], 2, [1, 1]) == [2.0, 4.0]
    assert burst_times([even(0), even(1)], 2, [1, 1]) == [2.0, 3.0]


def test_a_rest_that_fills_no_batch_is_served() -> None:
    assert burst_times([even(0)], 5, [2]) == [2.0, 2.0, 4.0, 4.0, 5.0]
    for burst, batches in ((0, [1, 1]), (2, [1, 0]), (2, [0, 1]), (2, [1])):
        with pytest.raises(RangeError):
            burst_times([even(0), even(1)], burst, batches)
