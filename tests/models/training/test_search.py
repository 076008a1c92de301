"""Mining by products of matrices: the scores are BM25's and cosines, and the pools hold the best of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from edge.models.blending import BM25_WEIGHT as SHARE  # noqa: E402
from edge.models.training.mining import BM25, Candidates, Request  # noqa: E402
from edge.models.training.search import Depths, Searcher  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
DEPTHS = Depths(fused=8, lexical=2, dense=3, far=4, farthest=30, found=5, fewest=4)


def documents(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(count)]


def vectors(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


TEXTS = documents(60)
HELD = vectors(60, 0)


def searcher() -> Searcher:
    return Searcher(TEXTS, HELD, torch.device("cpu"))


def fused(query: str, vector: np.ndarray) -> np.ndarray:
    words = BM25(TEXTS).scores(query)
    return SHARE * words / max(1.0, float(words.max())) + (1 - SHARE) * np.maximum(0, HELD @ vector)


def test_scores_are_bm25_and_cosines() -> None:
    queries = ["lake tiger", "engine engine engine", "Nowhere", "", "lakes nowhere stone", *documents(20, seed=1)]
    asked = vectors(len(queries), 2)
    oracle = BM25(TEXTS)
    seen = []
    for group, lexical, dense in searcher().scores(queries, asked, batch=7):
        for place, n in enumerate(group):
            assert np.allclose(lexical[place].numpy(), oracle.scores(queries[n]), rtol=1e-4, atol=1e-5)
            assert np.allclose(dense[place].numpy(), HELD @ asked[n], atol=1e-5)
            seen.append(n)
    assert seen == list(range(len(queries)))


def mined(requests: list[Request], depths: Depths = DEPTHS, seed: int = 0) -> list[Candidates]:
    return list(searcher().mine(requests, vectors(len(requests), 3), depths, seed))


def test_a_judged_pool_is_the_first_of_each_order_and_some_from_further_down() -> None:
    requests = [Request(text, (n, n + 1)) for n, text in enumerate(documents(20, seed=1))]
    found = mined(requests)
    assert [c.query for c in found] == [r.query for r in requests]
    for candidates, request, vector in zip(found, requests, vectors(20, 3), strict=True):
        score = fused(request.query, vector)
        order = np.argsort(-score, kind="stable")
        first = {*order[:8].tolist(), *np.argsort(-(HELD @ vector))[:3].tolist(), *request.positive}
        assert first <= set(candidates.rows)
        assert len(candidates.rows) == len(set(candidates.rows)) <= 8 + 2 + 3 + 4 + 2
        assert set(candidates.rows) - first  # BM25's own and the far ones
        assert np.all(np.diff(score[candidates.rows]) <= 1e-5)
        assert np.mean(candidates.teacher) == pytest.approx(0.0, abs=0.01)
        assert 0.5 < np.std(candidates.teacher) <= 1.01


def test_far_candidates_depend_on_the_seed_alone() -> None:
    requests = [Request(text, (n,)) for n, text in enumerate(documents(5, seed=1))]
    assert mined(requests) == mined(requests)
    assert mined(requests) != mined(requests, seed=1)


def test_a_query_that_nobody_judged_is_kept_if_retrieval_finds_its_passage() -> None:
    queries = documents(40, seed=1)
    asked = vectors(40, 3)
    rank = [int((fused(q, v) > fused(q, v)[n]).sum()) for n, (q, v) in enumerate(zip(queries, asked, strict=True))]
    kept = {c.query for c in mined([Request(q, (n,), False) for n, q in enumerate(queries)])}
    assert kept == {q for q, r in zip(queries, rank, strict=True) if r < DEPTHS.found}
    assert 0 < len(kept) < 40
    assert len(mined([Request(q, (n,), True) for n, q in enumerate(queries)])) == 40


def test_what_both_orders_place_above_the_passage_is_no_negative_of_an_unjudged_query() -> None:
    queries = documents(40, seed=1)
    asked = vectors(40, 3)
    oracle, removed = BM25(TEXTS), 0
    judged = {c.query: c for c in mined([Request(q, (n,), True) for n, q in enumerate(queries)])}
    for candidates in mined([Request(q, (n,), False) for n, q in enumerate(queries)]):
        n = queries.index(candidates.query)
        words, near = oracle.scores(queries[n]), HELD @ asked[n]
        above = {row for row in range(60) if words[row] >= words[n] - 1e-6 and near[row] > near[n] + 1e-6}
        assert not above & set(candidates.rows)
        removed += len(above & set(judged[candidates.query].rows))
    assert removed


def test_a_pool_with_too_few_candidates_is_left_out() -> None:
    deep = Depths(fused=8, lexical=2, dense=3, far=4, farthest=30, found=5, fewest=40)
    assert mined([Request("lake", (0,))], deep) == []


def test_batches_of_different_widths_stand_in_one_pool() -> None:
    """The 513th query begins a second batch, and its five positives make that one wider."""
    queries = documents(513, seed=1)
    requests = [Request(query, (n % 60,)) for n, query in enumerate(queries[:-1])]
    requests.append(Request(queries[-1], tuple(range(5, 10))))
    for ordered in (requests, requests[::-1]):
        found = mined(ordered)
        assert [c.query for c in found] == [r.query for r in ordered]
        for candidates, request in zip(found, ordered, strict=True):
            assert set(request.positive) <= set(candidates.rows) <= set(range(60))
            assert len(candidates.rows) == len(candidates.teacher)


def test_a_pool_without_spread_teaches_nothing() -> None:
    same = Searcher(["lake"] * 20, np.repeat(HELD[:1], 20, axis=0), torch.device("cpu"))
    (found,) = same.mine([Request("lake", (3,))], vectors(1, 3), DEPTHS)
    assert found.teacher == [0.0] * len(found.rows)
