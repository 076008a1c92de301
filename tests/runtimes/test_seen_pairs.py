"""A reranker that remembers pairs gives the results of one that does not, to the last bit, and computes less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth

from edge.config import Config
from edge.runtimes.reranker import Ranking, Reranker
from edge.runtimes.scoring import SeenPairs

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


def test_the_same_pool_needs_no_pass(reranker: Reranker) -> None:
    first = reranker.explain(QUERY, texts(2, 12), 5, remember=True)
    reranker.engine.run = None  # type: ignore[method-assign,assignment]
    second = reranker.explain(QUERY, texts(2, 12), 5, remember=True)
    assert (seen(second), second.stats.evaluations) == (seen(first), 0)
    assert second.stats.evaluations_full == first.stats.evaluations_full
    for query, how in ((f"{QUERY}?", {"remember": True}), (QUERY, {})):
        with pytest.raises(TypeError):
            reranker.explain(query, texts(2, 12), 5, **how)


def test_more_pairs_than_are_remembered_are_ranked_all_the_same(reranker: Reranker) -> None:
    reranker._seen = SeenPairs(reranker.model.spec.layers, 8)
    plain = reranker.explain(QUERY, texts(3, 30), 4)
    for _ in range(3):
        assert seen(reranker.explain(QUERY, texts(3, 30), 4, remember=True)) == seen(plain)


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
