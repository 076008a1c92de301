"""Stage rates: found again from exact times, never negative, and as good as any others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from edge.tuning.stage_costs import Load, StageCosts, prepare_of, queue_places, scan_of

SQ8, PQ = ("sq8", 64), ("pq", 16)


def loads() -> list[Load]:
    """Searches that differ in every stage."""
    made = []
    for codec, lists, probed, depth in product((SQ8, PQ, ("flat", 256)), (16, 128), (1, 5, 16), (2, 8)):
        rows = 40.0 * probed + 13 * depth
        queue = queue_places(depth, exact=codec[0] == "flat")
        made.append(Load(codec, 64, lists, probed, rows, queue, 7.0 * depth + probed))
    return made


RATES = {
    "query": 2e-4, "coarse quantizer": 3e-9, "lists": 4e-6, "queue": 2e-8, "rescoring": 1e-6, scan_of(SQ8): 5e-8,
    scan_of(PQ): 3e-8, scan_of(("flat", 256)): 6e-8, prepare_of(SQ8): 1e-5, prepare_of(PQ): 5e-5,
}  # fmt: skip


def test_rates_are_found_from_the_times_that_they_make() -> None:
    known = StageCosts(RATES, 0.0)
    found = StageCosts.fitted(loads(), [known.seconds(load) for load in loads()])
    assert found.error < 1e-6
    for name, rate in RATES.items():
        assert found.rates[name] == pytest.approx(rate, rel=1e-4), name


def test_exact_codes_are_not_scored_again() -> None:
    assert next(load for load in loads() if load.codec[0] == "flat").amounts()["rescoring"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_rates_above_zero_fit_noisy_times_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = [StageCosts(RATES, 0.0).seconds(load) * random.uniform(0.6, 1.4) for load in loads()]
    found = StageCosts.fitted(loads(), times)

    def wrong(rates: dict[str, float]) -> float:
        costs = StageCosts(rates, 0.0)
        return sum((costs.seconds(load) / time - 1) ** 2 for load, time in zip(loads(), times, strict=True))

    best = wrong(dict(found.rates))
    assert min(found.rates.values()) >= 0
    for name, rate in found.rates.items():  # the error is convex: where no small step helps, no step does
        for other in (rate * 1.01 + 1e-12, max(0.0, rate * 0.99 - 1e-12)):
            assert wrong({**found.rates, name: other}) >= best * (1 - 1e-9), name
    assert found.error == pytest.approx(
        max(abs(found.seconds(load) / time - 1) for load, time in zip(loads(), times, strict=True))
    )
