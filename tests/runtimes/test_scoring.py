"""The memory of an observer for its candidates is leased, and many are scored as few are."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from making.synth import SHAPES

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.models.architectures import family_of
from edge.models.spec import ModelSpec
from edge.runtimes import scoring
from edge.runtimes.scoring import CandidatePool, PruningObserver, Scorer
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.pruning import ProgressivePruning


@pytest.fixture
def spec() -> ModelSpec:
    shape = SHAPES["tiny-bert"]
    return family_of(shape.config).spec_from_config(shape.config, shape.head, "fp32")


def observer(spec: ModelSpec, candidates: int, budget: MemoryBudget | None = None) -> PruningObserver:
    width = spec.layer.hidden
    random = np.random.default_rng(0)
    head = {
        "dense.weight": random.standard_normal((width, width)).astype(np.float32) / 8,
        "dense.bias": np.zeros(width, np.float32),
        "out.weight": random.standard_normal((width, 1)).astype(np.float32),
        "out.bias": np.zeros(1, np.float32),
    }
    pruning = ProgressivePruning(candidates, mode="ranked", threshold=float("inf"), candidates=candidates)
    pool = CandidatePool(candidates, retrieved=False)
    return PruningObserver(spec, Scorer(spec, head), pruning, pool, candidates, budget=budget)


def rank(made: PruningObserver, states: np.ndarray) -> list[int]:
    ids = np.arange(len(states))
    assert made.decide(0, ids).tolist() == ids.tolist()
    assert made.wants(made.spec.layers)
    made.collect(TokenChunk(ids, np.ones(len(states), np.int32)), states)
    made.decide(made.spec.layers, ids)
    return made.ranking().tolist()


def test_what_it_holds_is_leased_until_it_is_closed(spec: ModelSpec) -> None:
    budget = MemoryBudget(1 << 36, part=True)
    made = observer(spec, 5000, budget)
    assert budget.used >= 5000 * spec.layer.hidden * 4
    ranking = rank(made, np.random.default_rng(1).standard_normal((5000, spec.layer.hidden)).astype(np.float32))
    made.close()
    made.close()
    assert budget.used == 0
    assert made.ranking().tolist() == ranking
    budget = MemoryBudget(1 << 20, part=True)
    with pytest.raises(BudgetExceeded, match="candidates"):
        observer(spec, 100_000, budget)
    assert budget.used == 0


def test_many_are_scored_in_parts(spec: ModelSpec) -> None:
    states = np.random.default_rng(1).standard_normal((50, spec.layer.hidden)).astype(np.float32)
    together = observer(spec, 50)
    expected = rank(together, states)
    widest = 0

    def watched(self: Scorer, layer: int, vectors: np.ndarray) -> np.ndarray:
        nonlocal widest
        widest = max(widest, len(vectors))
        return score(self, layer, vectors)

    score = Scorer.__call__
    with mock.patch.object(scoring, "SCORED_TOGETHER", 7), mock.patch.object(Scorer, "__call__", watched):
        parts = observer(spec, 50)
        assert rank(parts, states) == expected
    assert widest == 7
    np.testing.assert_allclose(parts.scores, together.scores, rtol=1e-5)
