"""The sizes of the small indexes that are measured."""

from __future__ import annotations

import pytest

from edge.tuning.stage_costs import small_sizes


@pytest.mark.parametrize(
    ("available", "rows", "expected"),
    [
        ([4, 8, 16, 32, 50], 320, [16, 32]),
        ([32, 64, 128, 256, 512], 16_384, [32, 256]),
        ([512, 1024, 2048], 16_384, [512, 1024]),
        ([4], 320, [4]),
        ([256, 512], 1024, [256]),
        ([64, 200], 16_384, [64, 200]),
    ],
)
def test_two_sizes_wherever_there_is_a_choice(available: list[int], rows: int, expected: list[int]) -> None:
    assert small_sizes(available, rows) == expected
