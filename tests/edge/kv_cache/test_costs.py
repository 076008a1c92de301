"""Costs are learned from prefills, survive the process, and are learned anew where they make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.files import sealed
from edge.kv_cache.backend import LearnedCosts


def seconds_of(cached: int, computed: int) -> float:
    """A model of the cost of a call: products and attention."""
    return 0.02 + 1e-3 * computed + 2e-7 * computed * (cached + computed / 2)


def test_costs_are_learned_from_the_prefills_of_an_application() -> None:
    costs = LearnedCosts("m")
    assert not costs.known
    assert costs.estimate(100, 100) == 0.0
    for cached, computed in [(0, 60), (60, 400), (460, 350), (0, 80), (80, 500), (580, 30), (610, 700)]:
        costs.learn(cached, computed, seconds_of(cached, computed))
    for cached, computed in [(0, 512), (2000, 100), (900, 32)]:
        assert costs.estimate(cached, computed) == pytest.approx(seconds_of(cached, computed), rel=0.01)


def test_noise_makes_no_term_negative_and_a_slower_machine_is_noticed() -> None:
    random = np.random.default_rng(0)
    costs = LearnedCosts("m")
    for _ in range(60):
        cached, computed = (int(n) for n in random.integers(1, 800, 2))
        costs.learn(cached, computed, seconds_of(cached, computed) * random.uniform(0.7, 1.4))
    table = np.array([[costs.estimate(cached, n) for n in (1, 50, 400, 900)] for cached in (0, 100, 900)])
    assert (table > 0).all()
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) > 0).all()
    before = costs.estimate(300, 300)
    for _ in range(200):
        cached, computed = (int(n) for n in random.integers(1, 800, 2))
        costs.learn(cached, computed, 3 * seconds_of(cached, computed))
    assert costs.estimate(300, 300) > 2 * before


@pytest.mark.parametrize(("computed", "seconds"), [(0, 1.0), (10, 0.0), (10, float("nan")), (10, float("inf"))])
def test_prefills_that_cannot_be_are_not_learned(computed: int, seconds: float) -> None:
    costs = LearnedCosts("m")
    costs.learn(0, computed, seconds)
    assert not costs.known


def test_learned_costs_survive_the_process_and_belong_to_one_backend(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs = LearnedCosts("m", path)
    costs.save()
    assert not path.exists(), "there is nothing to keep"
    costs.learn(0, 100, 0.5)
    costs.learn(100, 400, 2.5)
    costs.save()
    assert LearnedCosts("m", path).estimate(50, 50) == costs.estimate(50, 50)
    assert not LearnedCosts("other", path).known
    path.write_text("[", encoding="utf-8")
    assert not LearnedCosts("m", path).known


@pytest.mark.parametrize(
    "state",
    [{}, {"products": 1, "targets": []}, {"products": [[1]], "targets": [1]}, {"products": "x", "targets": None},
     {"products": [[1, 0, 0]] * 3, "targets": [1, -1, 0]}],
)  # fmt: skip
def test_kept_costs_that_make_no_sense_are_learned_anew(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "costs.json"
    sealed.write_sealed(path, {"fingerprint": "m", **state})
    assert not LearnedCosts("m", path).known
