"""Final logits are forecast from the known scores of a pool."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge.models.blending import standard
from edge.runtimes.calibration import RecordedScores, forecast


def test_a_forecast_is_the_best_line_within_a_pool() -> None:
    random = np.random.default_rng(1)
    finals = [random.normal(size=50) + shift for shift in (-3.0, 0.0, 4.0)]
    first = [final / 2 + 0.1 * random.normal(size=50) - 1 for final in finals]
    blind = [random.normal(size=50) for _ in finals]
    records = [RecordedScores(np.stack(rows), None, True) for rows in zip(blind, first, finals, strict=True)]
    found = forecast(records, retrieved=False)
    assert found.slopes[2] == pytest.approx(2.0, rel=0.1)
    assert found.offsets[2] == pytest.approx(np.mean(finals) - found.slopes[2] * np.mean(first))
    assert found.errors[2] == pytest.approx(0.2, rel=0.15)
    assert found.errors[0] == found.errors[1] == math.inf
    assert found.pulls == (0.0,) * 4
    assert (found.slopes[3], found.offsets[3], found.errors[3]) == (1.0, 0.0, 0.0)


def test_what_retrieval_said_is_part_of_a_forecast() -> None:
    """It explains half of the final logits' variance before any layer, and adds to the evidence of a noisy layer."""
    random = np.random.default_rng(3)
    retrieved = [np.sort(random.normal(size=80))[::-1] for _ in range(4)]
    finals = [2.0 * standard(scores) + 2.0 * random.normal(size=80) for scores in retrieved]
    first = [final + 2.0 * random.normal(size=80) for final in finals]
    records = [
        RecordedScores(np.stack(rows), None, scores.tolist())
        for *rows, scores in zip(first, finals, retrieved, strict=True)
    ]
    alone, blended = forecast(records, retrieved=False), forecast(records, retrieved=True)
    assert blended.pulls[0] == pytest.approx(2.0, rel=0.15)
    assert blended.errors[0] == pytest.approx(2.0, rel=0.15)
    assert blended.errors[1] == pytest.approx(np.sqrt(2), rel=0.15)
    assert blended.errors[1] < 0.95 * alone.errors[1]
    assert blended(0, np.zeros(1), np.ones(1)) == pytest.approx(2.0, rel=0.2)


def test_errors_are_those_of_the_domain_where_they_are_largest() -> None:
    random = np.random.default_rng(5)
    finals = [random.normal(size=400) for _ in range(4)]
    records = [
        RecordedScores(np.stack((final + deviation * random.normal(size=400), final)), None, True, domain)
        for final, deviation, domain in zip(finals, (0.1, 0.1, 0.1, 0.4), "aaab", strict=True)
    ]
    found = forecast(records, retrieved=False)
    alone = forecast(records[3:], retrieved=False)
    assert found.errors[1] == pytest.approx(0.4, rel=0.15)
    assert found.errors[1] > 0.9 * alone.errors[1] > 2 * forecast(records[:3], retrieved=False).errors[1]
