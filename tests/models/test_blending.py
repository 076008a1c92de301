"""The blended order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import InputError
from edge.models.blending import (
    COMPARED,
    LONG,
    LONG_WEIGHT,
    WEIGHT,
    prior_logits,
    retrieval_scores,
    retrieved_scores,
    share_of,
    standard,
)
from edge.models.training.measures import blended
from edge.runtimes.scoring import CandidatePool


def ranks(scores: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-scores, kind="stable"), kind="stable")


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_raising_one_logit_never_lowers_its_place(weight: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        logits = rng.normal(size=12) * rng.uniform(0.1, 5)
        which = rng.integers(12)
        retrieved = rng.normal(size=12)
        before = ranks(blended(logits, retrieved, weight))[which]
        logits[which] += rng.uniform(0, 4)
        assert ranks(blended(logits, retrieved, weight))[which] <= before


def test_weight_zero_is_the_retrieval_order_and_one_the_rerankers() -> None:
    logits = np.random.default_rng(2).normal(size=9)
    assert ranks(blended(logits, retrieval_scores(9), 0.0)).tolist() == list(range(9))
    assert ranks(blended(logits, retrieval_scores(9), 1.0)).tolist() == ranks(logits).tolist()


def test_equal_logits_keep_the_retrieval_order() -> None:
    assert ranks(blended(np.full(7, 2.5), retrieval_scores(7), 0.9)).tolist() == list(range(7))


def test_shift_and_scale_do_not_matter() -> None:
    logits, retrieved = np.random.default_rng(3).normal(size=(2, 20))
    assert np.allclose(blended(logits, retrieved, 0.4), blended(7 * logits - 3, 0.01 * retrieved + 5, 0.4))
    for scale in (1e-30, 1e307):
        assert np.allclose(blended(logits, retrieved, 0.4), blended(logits, scale * retrieved, 0.4))


def test_what_retrieval_says_is_its_scores_else_its_order_else_nothing() -> None:
    assert retrieved_scores(3, False) is None
    assert retrieved_scores(3, True).tolist() == retrieval_scores(3).tolist()  # type: ignore[union-attr]
    assert retrieved_scores(3, [0.5, 0.9, -1.0]).tolist() == [0.5, 0.9, -1.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([0.1, 0.2], "2 scores for 3"),
        ([0.1, np.nan, 0.2], "not finite"),
        ("abc", "are numbers"),
        (["a", "b", "c"], "are numbers"),
    ],
)
def test_scores_that_are_not_the_candidates_are_refused(scores: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        retrieved_scores(3, scores)


def test_a_candidates_part_is_the_same_in_pools_of_all_sizes() -> None:
    """Also if fewer of them are judged than retrieval scored."""
    scores = np.sort(np.random.default_rng(4).exponential(size=3 * COMPARED))[::-1]
    whole = prior_logits(scores)
    for count in (COMPARED, COMPARED + 1, 2 * COMPARED):
        assert prior_logits(scores[:count]) == pytest.approx(whole[:count])
    few, many = (CandidatePool(5, retrieved=scores[:count].tolist()) for count in (COMPARED, 3 * COMPARED))
    ids, logits = np.arange(5), np.arange(5.0)
    assert few.see(ids, logits) == pytest.approx(many.see(ids, logits))
    assert standard(scores)[:COMPARED].mean() == pytest.approx(0)


def test_a_weight_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        blended(np.zeros(3), retrieval_scores(3), 1.5)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0.05, 1.0))
def test_prior_logits_order_a_pool_as_the_blend_does(values: list[float], weight: float) -> None:
    logits = np.array(values)
    if logits.std() <= 1e-6:
        logits = np.arange(len(values), dtype=float)
    retrieved = retrieval_scores(len(logits))
    mixed = blended(logits, retrieved, weight)
    shifted = logits + logits.std() * prior_logits(retrieved, weight)
    assert np.allclose(weight * (shifted - shifted.mean()) / logits.std(), mixed - mixed.mean(), atol=1e-7)


def test_the_share_falls_with_the_sentences_of_the_query() -> None:
    shares = [share_of("What holds here? " * count) for count in range(8)]
    assert shares[0] == shares[1] == WEIGHT
    assert shares[LONG] == shares[-1] == LONG_WEIGHT
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == LONG
    one = "I need to know how much the rent was in May, who paid it and when."
    assert share_of(one) == WEIGHT, "commas end no sentence"


def test_words_count_where_no_full_stop_does() -> None:
    shares = [share_of("word " * count) for count in range(200)]
    assert shares[0] == shares[20] == WEIGHT
    assert shares[-1] == LONG_WEIGHT
    assert shares == sorted(shares, reverse=True)
