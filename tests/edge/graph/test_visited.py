"""The sets of visited vertices: new vertices are known as such, and a Bloom filter errs rarely."""

from __future__ import annotations

import numpy as np
import pytest

from edge.errors import RangeError
from edge.graph.visited import BITS, BloomFilter, ExactSet, Visited, false_positive_rate


@pytest.mark.parametrize("seen", [ExactSet(), BloomFilter()])
def test_each_vertex_is_new_once(seen: Visited) -> None:
    assert seen.fresh([[5, 3, 5], [3, 9]]) == [5, 3, 9]
    assert seen.fresh([[9, 1], [], [1, 5]]) == [1]
    assert seen.fresh([[], []]) == []
    assert seen.fresh([]) == []
    assert seen.fresh([np.array([2, 1], np.int32), np.array([2], np.int32)]) == [2]  # type: ignore[list-item]


@pytest.mark.parametrize(("bits", "hashes"), [(1 << 12, 1), (1 << 12, 3), (1 << 13, 2)])
@pytest.mark.parametrize("step", [1, 6, 4096])
def test_a_bloom_filter_errs_as_often_as_the_formula_says(bits: int, hashes: int, step: int) -> None:
    taken = BloomFilter(bits, hashes)
    for item in range(500):
        taken.fresh([[item * step]])
    others = range(1000 * step, 41_000 * step, step)
    wrong = 1 - len(taken.fresh([others])) / len(others)  # all of them are looked up before the first is added
    assert wrong == pytest.approx(false_positive_rate(bits, 500, hashes), rel=0.25)


def test_a_bloom_filter_forgets_nothing_until_it_is_cleared() -> None:
    taken = BloomFilter(1 << 9, 2)
    first = taken.fresh([range(200)])
    assert taken.fresh([range(200)]) == []
    assert first, "an empty filter has seen nothing"
    taken.clear()
    assert taken.fresh([range(200)]) == first
    assert taken.nbytes == 1 << 9
    assert BITS == 256 << 10, "the size in the source"


def test_a_filter_of_wrong_size_is_refused() -> None:
    for bits, hashes in ((1000, 3), (4, 1), (16, 0)):
        with pytest.raises(RangeError):
            BloomFilter(bits, hashes)
    assert BloomFilter(8, 1).fresh([[3]]) == [3]
