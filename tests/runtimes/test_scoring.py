"""What is scored: candidates under a lease, many as few are, and pairs that a reranker remembers to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from making.synth import SHAPES, synth

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.models.architectures import family_of
from edge.models.spec import ModelSpec
from edge.runtimes import scoring
from edge.runtimes.reranker import Ranking, Reranker
from edge.runtimes.scoring import CandidatePool, PruningObserver, Scorer, SeenPairs
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


QUERY = "which river floods in spring"


def texts(seed: int, count: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(f"word{n}" for n in random.integers(0, 50, random.integers(2, 40))) for _ in range(count)]


@pytest.fixture(scope="module", params=["tiny-bert", "tiny-qwen3"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / request.param
    synth(request.param, folder).close()
    return folder


@pytest.fixture
def reranker(pack: Path, tmp_path: Path) -> Iterator[Reranker]:
    with Reranker(pack, config=Config(memory=10**11, scratch_dir=str(tmp_path / "scratch"))) as made:
        yield made


def seen(ranking: Ranking) -> Any:
    layers = [(r.layer, r.ids.tolist(), r.scores.tolist(), r.decision.dropped.tolist()) for r in ranking.layers]
    return ranking.results, ranking.exact, layers


def test_overlapping_pools_rank_as_if_each_were_the_first(reranker: Reranker) -> None:
    random = np.random.default_rng(5)
    every = texts(1, 40)
    computed = whole = again = 0
    run = reranker.engine.run
    passes: list[int] = []
    reranker.engine.run = lambda job: passes.append(1) or run(job)  # type: ignore[method-assign,func-returns-value]
    for number in range(40):
        docs = [every[i] for i in random.permutation(40)[: random.integers(1, 24)]]
        top_k = int(random.integers(1, len(docs) + 1))
        how: dict[str, Any] = {"threshold": 0.02 if number % 4 else "inf", "mode": ("ranked", "top-k")[number % 2]}
        if number % 3 == 0:
            wanted = int(random.integers(1, len(docs) + 1))
            how["enough"] = lambda found, wanted=wanted: len(found) >= wanted
        one = reranker.explain(QUERY, docs, top_k, **how)
        passes.clear()
        other = reranker.explain(QUERY, docs, top_k, remember=True, **how)
        assert seen(one) == seen(other)
        computed, whole = computed + other.stats.evaluations, whole + one.stats.evaluations
        again += len(passes) > (2 if "enough" in how else 1)
    assert computed < whole / 3
    assert again, "pairs that were pruned before a pool kept them are computed again"


def test_the_same_pool_needs_no_pass_and_more_pairs_than_are_remembered_are_ranked(reranker: Reranker) -> None:
    remembered, reranker._seen = reranker._seen, SeenPairs(reranker.model.spec.layers, 8)
    plain = reranker.explain(QUERY, texts(3, 30), 4)
    for _ in range(3):
        assert seen(reranker.explain(QUERY, texts(3, 30), 4, remember=True)) == seen(plain)
    reranker._seen = remembered
    first = reranker.explain(QUERY, texts(2, 12), 5, remember=True)
    reranker.engine.run = None  # type: ignore[method-assign,assignment]
    second = reranker.explain(QUERY, texts(2, 12), 5, remember=True)
    assert (seen(second), second.stats.evaluations) == (seen(first), 0)
    assert second.stats.evaluations_full == first.stats.evaluations_full
    for query, how in ((f"{QUERY}?", {"remember": True}), (QUERY, {})):
        with pytest.raises(TypeError):
            reranker.explain(query, texts(2, 12), 5, **how)


def test_pairs_are_told_apart_and_the_oldest_leave() -> None:
    pairs = SeenPairs(2, 3)
    keys = [*pairs.keys("a", ["bc", "b"]), *pairs.keys("ab", ["c", ""])]
    assert len(set(keys)) == 4
    for value, key in enumerate(keys):
        pairs.note([key], 2, np.array([float(value)]))
    pairs.note([keys[1]], 1, np.array([7.0]))
    found = pairs.read(keys)
    nan = np.nan
    np.testing.assert_array_equal(found, [[nan, nan, nan], [nan, 7, 1], [nan, nan, 2], [nan, nan, 3]])
