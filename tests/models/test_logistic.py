"""A logistic regression of a few signals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge.models.evidence import Logistic, fit, log_odds


def test_it_separates_what_can_be_separated() -> None:
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(300, 3))
    right = signals[:, 1] + 0.1 * rng.normal(size=300) > 0.2
    model = fit(signals, right)
    assert ((model.probability(signals) > 0.5) == right).mean() > 0.95
    assert abs(model.weights[1]) > 10 * abs(model.weights[0])
    stored = Logistic.from_json(json.loads(json.dumps(model.to_json())))
    assert np.allclose(stored.probability(signals), model.probability(signals), atol=1e-4)


def test_without_signals_it_is_the_share_of_the_right_ones() -> None:
    signals = np.zeros((10, 1))
    right = np.arange(10) < 5
    assert fit(signals, right).probability([[0.0]])[0] == pytest.approx(0.5)
    assert fit(signals, np.ones(10, bool)).probability([[0.0]])[0] > 0.9


def test_log_odds_stay_finite() -> None:
    assert log_odds(0.5) == 0.0
    assert log_odds(0.0) == pytest.approx(-log_odds(1.0)) == pytest.approx(-9.21, abs=0.01)
