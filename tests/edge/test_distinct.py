"""Distinct numbers, against numpy's."""

from __future__ import annotations

import numpy as np

from edge.distinct import distinct


def test_equals_numpy() -> None:
    random = np.random.default_rng(0)
    for shape in ((0,), (1,), (50,), (7, 9), (3, 0)):
        numbers = random.integers(-9, 9, shape)
        found = distinct(numbers)
        assert found.dtype == numbers.dtype
        assert (found == np.unique(numbers)).all()
