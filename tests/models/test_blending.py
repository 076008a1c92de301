"""The blended order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.models.blending import blended, prior_logits


def ranks(scores: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-scores, kind="stable"), kind="stable")


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_raising_one_logit_never_lowers_its_place(weight: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        logits = rng.normal(size=12) * rng.uniform(0.1, 5)
        which = rng.integers(12)
        before = ranks(blended(logits, weight))[which]
        logits[which] += rng.uniform(0, 4)
        assert ranks(blended(logits, weight))[which] <= before


def test_weight_zero_is_the_retrieval_order_and_one_the_rerankers() -> None:
    logits = np.random.default_rng(2).normal(size=9)
    assert ranks(blended(logits, 0.0)).tolist() == list(range(9))
    assert ranks(blended(logits, 1.0)).tolist() == ranks(logits).tolist()


def test_equal_logits_keep_the_retrieval_order() -> None:
    assert ranks(blended(np.full(7, 2.5), 0.9)).tolist() == list(range(7))


def test_shift_and_scale_of_the_logits_do_not_matter() -> None:
    logits = np.random.default_rng(3).normal(size=20)
    assert np.allclose(blended(logits, 0.4), blended(7 * logits - 3, 0.4))


def test_a_weight_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        blended(np.zeros(3), 1.5)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0.05, 1.0))
def test_prior_logits_order_a_pool_as_the_blend_does(values: list[float], weight: float) -> None:
    logits = np.array(values)
    if logits.std() <= 1e-6:
        logits = np.arange(len(values), dtype=float)
    mixed = blended(logits, weight)
    shifted = logits + logits.std() * prior_logits(len(logits), weight)
    assert np.allclose(weight * (shifted - shifted.mean()) / logits.std(), mixed - mixed.mean(), atol=1e-7)
