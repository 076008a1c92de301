"""The measure that orders are judged by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge.models.blending import retrieval_scores
from edge.models.training.measures import ndcg


def test_ndcg_counts_what_retrieval_missed() -> None:
    grades = np.array([0.0, 1.0, 0.0])
    alone = float(ndcg(retrieval_scores(3), grades, np.array([1.0])))
    assert alone == pytest.approx(1 / math.log2(3))
    missed = float(ndcg(retrieval_scores(3), grades, np.array([1.0, 1.0])))
    assert missed == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))


def test_ndcg_stops_at_ten() -> None:
    grades = np.zeros(12)
    grades[10] = 1.0
    assert float(ndcg(retrieval_scores(12), grades, np.array([1.0]))) == 0.0
