from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.store.lexical import convex_combination, reciprocal_rank_fusion

rankings = st.lists(st.lists(st.integers(0, 30), max_size=12, unique=True), max_size=4)


@given(rankings)
def test_scores_are_the_formula_s(lists: list[list[int]]) -> None:
    fused = reciprocal_rank_fusion(lists)
    ids = {i for ranking in lists for i in ranking}
    assert dict(fused) == pytest.approx({i: sum(1 / (61 + r.index(i)) for r in lists if i in r) for i in ids})
    assert [(-s, i) for i, s in fused] == sorted((-s, i) for i, s in fused)


def test_agreement_beats_a_single_first_place() -> None:
    assert reciprocal_rank_fusion([[7, 1, 2], [9, 1, 3]])[0][0] == 1


def test_a_repeated_id_counts_once() -> None:
    assert reciprocal_rank_fusion([[4, 4, 5]]) == [(4, 1 / 61), (5, 1 / 62)]


def test_words_and_vectors_are_fused_by_their_scores() -> None:
    fused = convex_combination({1: 8.0, 2: 4.0, 9: 2.0}, {1: 0.1, 2: 0.9, 3: 0.95, 4: -0.5}, 0.4)
    expected = {1: 0.4 + 0.6 * 0.1, 2: 0.2 + 0.6 * 0.9, 3: 0.6 * 0.95, 9: 0.1, 4: 0.0}
    assert [i for i, _ in fused] == sorted(expected, key=lambda i: -expected[i])
    assert dict(fused) == pytest.approx(expected)


def test_what_the_vectors_did_not_reach_is_as_near_as_the_last_of_them() -> None:
    assert dict(convex_combination({1: 5.0}, {2: 0.8, 3: 0.6}, 0.5))[1] == pytest.approx(0.5 + 0.3)


def test_words_that_say_nothing_weigh_nothing() -> None:
    """FTS5 gives a term that most rows hold a weight near zero; that must not become the best there is."""
    assert dict(convex_combination({1: 1e-6}, {1: 0.5}, 0.4))[1] == pytest.approx(0.6 * 0.5, abs=1e-5)


def test_a_match_of_a_part_of_the_query_is_not_scaled_to_a_whole_one() -> None:
    near = {1: 0.5, 2: 0.6}
    assert dict(convex_combination({1: 2.0}, near, 0.4, full=8.0))[1] == pytest.approx(0.4 * 2 / 8 + 0.6 * 0.5)
    assert convex_combination({1: 9.0}, near, 0.4, full=8.0) == convex_combination({1: 9.0}, near, 0.4)


def test_one_ranking_alone_has_all_the_weight() -> None:
    assert convex_combination({1: 4.0, 2: 2.0}, {}, 0.2) == [(1, 1.0), (2, 0.5)]
    assert convex_combination({}, {1: 0.5, 2: 0.7}, 0.2) == [(2, 0.7), (1, 0.5)]
    assert convex_combination({}, {}, 0.2) == []


@given(
    st.dictionaries(st.integers(0, 20), st.floats(0, 30)), st.dictionaries(st.integers(0, 20), st.floats(-1, 1)),
    st.floats(0, 1),
)  # fmt: skip
def test_fused_scores_are_between_zero_and_one_and_sorted(
    words: dict[int, float], near: dict[int, float], weight: float
) -> None:
    fused = convex_combination(words, near, weight)
    assert {i for i, _ in fused} == {*words, *near}
    assert all(0 <= score <= 1 for _, score in fused)
    assert fused == sorted(fused, key=lambda item: (-item[1], item[0]))


def test_cosines_count_from_the_floor_of_the_embedder() -> None:
    words, near = {1: 5.0, 2: 1.0}, {1: 0.78, 2: 0.86}
    assert convex_combination(words, near, 0.2)[0][0] == 1, "BM25 outweighs the small difference of the cosines"
    fused = dict(convex_combination(words, near, 0.2, floor=0.7))
    assert fused == pytest.approx({1: 0.2 + 0.8 * 0.08 / 0.3, 2: 0.04 + 0.8 * 0.16 / 0.3})
    assert fused[2] > fused[1]
    assert dict(convex_combination(words, {1: 0.5}, 0.2, floor=0.7))[1] == pytest.approx(0.2), "no less than 0"
