from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.store.fusion import reciprocal_rank_fusion

rankings = st.lists(st.lists(st.integers(0, 30), max_size=12, unique=True), max_size=4)


def naive(lists: list[list[int]], constant: int, weights: list[float]) -> dict[int, float]:
    ids = {i for ranking in lists for i in ranking}
    return {i: sum(w / (constant + r.index(i) + 1) for r, w in zip(lists, weights, strict=True) if i in r) for i in ids}


@given(rankings, st.integers(1, 100), st.data())
def test_scores_are_the_formula_s(lists: list[list[int]], constant: int, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 3), min_size=len(lists), max_size=len(lists)))
    fused = reciprocal_rank_fusion(lists, constant=constant, weights=weights)
    expected = naive(lists, constant, weights)
    assert {i for i, _ in fused} == set(expected)
    for i, score in fused:
        assert score == pytest.approx(expected[i])
    assert [(-s, i) for i, s in fused] == sorted((-s, i) for i, s in fused)


def test_agreement_beats_a_single_first_place() -> None:
    assert reciprocal_rank_fusion([[7, 1, 2], [9, 1, 3]])[0][0] == 1


def test_a_repeated_id_counts_once() -> None:
    assert reciprocal_rank_fusion([[4, 4, 5]], constant=60) == [(4, 1 / 61), (5, 1 / 62)]


def test_one_weight_for_each_ranking() -> None:
    with pytest.raises(ValueError, match="zip"):
        reciprocal_rank_fusion([[1], [2]], weights=[1.0])
