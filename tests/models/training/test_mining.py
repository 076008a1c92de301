"""Mined lists, and the searches that they come from."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from edge.models.blending import BM25_WEIGHT as SHARE  # noqa: E402
from edge.models.training.corpora import Corpus  # noqa: E402
from edge.models.training.lists import (  # noqa: E402
    ListConfig,
    Mixture,
    answer_window,
    keywords,
    negatives,
    shown,
    window,
)
from edge.models.training.mining import BM25, Candidates, PackedLists, Pool, Request  # noqa: E402
from edge.models.training.prepare import judged, self_made  # noqa: E402
from edge.models.training.search import Depths, Searcher  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905


def documents(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(count)]


def hashed(texts: list[str]) -> np.ndarray:
    """A stand-in bi-encoder: unit bag-of-words vectors."""
    rows = np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=np.float32) + 1e-3
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def naive_bm25(texts: list[str], query: str, k1: float = 1.2, b: float = 0.75) -> list[float]:
    split = [text.split() for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        total = 0.0
        for word in query.split():
            holding = sum(word in other for other in split)
            frequency = words.count(word)
            if frequency:
                idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
                total += idf * frequency * (k1 + 1) / (frequency + k1 * (1 - b + b * len(words) / mean))
        scores.append(total)
    return scores


def mine(passages: list[str], requests: list[Request]) -> PackedLists:
    engine = Searcher(passages, hashed(passages), torch.device("cpu"))
    return engine.mine(requests, hashed([r.query for r in requests]), Depths())


def mined(count: int = 60) -> tuple[list[str], PackedLists]:
    texts = documents(count)
    return texts, mine(texts, [Request(texts[n], (n, (n + 1) % count)) for n in range(20)])


def test_positives_take_part_once_and_are_never_negatives() -> None:
    _, lists = mined()
    for row in lists:
        assert len(set(row.rows)) == len(row.rows) == len(row.teacher)
        assert set(row.positive) <= set(row.rows)
        for seed in range(20):
            chosen = negatives(row, 5, 4, random.Random(seed))
            assert len(set(chosen)) == 5
            assert not {row.rows[n] for n in chosen} & set(row.positive)
    small = Candidates("q", [4, 5, 6], [5], [0.0, 1.0, 0.0])
    assert sorted(negatives(small, 5, 10, random.Random(0))) == [0, 2], "what there is"
    assert lists[2:5] == [lists[2], lists[3], lists[4]]
    assert lists[-1] == lists[len(lists) - 1]


def test_pools_hold_no_test_query_and_no_test_document() -> None:
    texts = documents(30)
    corpus = Corpus(
        "set",
        [f"d{n}" for n in range(30)],
        [f"title {n}" for n in range(30)],
        [text + ". Lake stone cloud tiger lamp. Copper engine market garden bread." for text in texts],
        {f"q{n}": f"query {texts[n]}" for n in range(20)},
        {f"q{n}": {f"d{n}": 1} for n in range(12)},
        {f"q{n}": {f"d{n}": 1} for n in range(10, 20)},
    )
    barred_texts = {corpus.texts[n] for n in range(10, 20)}
    barred_queries = {corpus.queries[f"q{n}"] for n in range(10, 20)}
    part = corpus.without_test_documents()
    kinds = {"judged": judged(part), **self_made(part, random.Random(0), 100)}
    assert len(kinds["judged"]) == 10
    assert set(kinds) == {"judged", "title", "cloze"}
    for requests in kinds.values():
        passages = part.passages()
        lists = mine(passages, requests)
        assert len(lists)
        assert not {part.texts[n] for row in lists for n in row.rows} & barred_texts
        assert not {row.query for row in lists} & barred_queries


def test_pool_survives_the_disk(tmp_path: Path) -> None:
    texts, lists = mined()
    plain = Candidates("a query", [3, 1, 2], [1], [0.5, -1.0, 0.25], False, ("an answer",), True, "cut")
    for held in (lists, [*lists, plain], [plain]):
        Pool("set", [""] * len(texts), texts, held).save(tmp_path / "pool.npz")
        read = Pool.open(tmp_path / "pool.npz")
        assert (read.name, read.titles, read.texts) == ("set", [""] * len(texts), texts)
        assert list(read.lists) == list(held)
    assert [path.name for path in tmp_path.iterdir()] == ["pool.npz"]


def mixture(seed: int, shares: tuple[float, float] = (1.0, 3.0)) -> Mixture:
    texts, lists = mined()
    pools = [
        (name, Pool(name, [""] * len(texts), texts, lists), share) for name, share in zip("ab", shares, strict=True)
    ]
    return Mixture(pools, seed, ListConfig())


def test_a_list_depends_on_seed_and_number_alone() -> None:
    forward = [mixture(3).draw(n) for n in range(30)]
    other = mixture(3)
    assert [other.draw(n) for n in reversed(range(30))] == forward[::-1]
    assert [mixture(4).draw(n) for n in range(30)] != forward


def test_shares_hold_and_no_list_repeats_before_all_were_seen() -> None:
    drawn = mixture(0)
    sources = [drawn.draw(n).source for n in range(800)]
    assert 0.70 < sources.count("b") / 800 < 0.80
    calm = ListConfig(keyword_share=0.0, window_share=0.0)
    texts, lists = mined()
    one = Mixture([("a", Pool("a", [""] * 60, texts, lists), 1.0)], 0, calm)
    assert len({one.draw(n).query for n in range(20)}) == len({row.query for row in lists})
    with pytest.raises(ValueError, match="no training pools"):
        Mixture([], 0, ListConfig())
    with pytest.raises(ValueError, match="empty holds no list"):
        Mixture([("empty", Pool("p", [], [], []), 1.0)], 0, ListConfig())


def test_a_title_query_sees_no_titles_and_a_cloze_query_sees_the_cut_text() -> None:
    pool = Pool("p", ["ONE", "TWO"], ["first text", "second text"], [])
    row = Candidates("ONE", [0, 1], [0], [1.0, 0.0], False, bare=True, replaced="cut text")
    calm = ListConfig(window_share=0.0, keyword_share=0.0)
    assert shown(pool, row, "p", random.Random(0), calm).passages == ["cut text", "second text"]
    assert keywords("What is the capital of France?") == "capital France"
    assert keywords("who is it?") == "who is it?", "they are never empty"


def test_windows_hold_the_answer_and_are_not_trusted_to_the_retrievers() -> None:
    text = "The lake is deep. The tiger sleeps. Copper is a metal. Bread is baked. The lamp is lit."
    for seed in range(50):
        found = answer_window(text, ["metal"], random.Random(seed), 3)
        assert found is not None
        assert "Copper is a metal." in found
        assert 1 <= window(text, random.Random(seed), 3).count(".") <= 3
    assert answer_window(text, ["gold"], random.Random(0), 3) is None
    row = Candidates("what is copper", [0, 1], [0], [1.0, 0.0], True, ("metal",))
    always = ListConfig(window_share=1.0)
    assert shown(Pool("p", ["", ""], [text, text], []), row, "p", random.Random(0), always).trust == 0.0


DEPTHS = Depths(fused=8, lexical=2, dense=3, far=4, farthest=30, found=5, fewest=4)


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
    for query in queries[:3]:
        assert np.allclose(oracle.scores(query), naive_bm25(TEXTS, query), rtol=1e-4, atol=1e-5)
    seen = []
    for group, lexical, dense in searcher().scores(queries, asked, batch=7):
        for place, n in enumerate(group):
            assert np.allclose(lexical[place].numpy(), oracle.scores(queries[n]), rtol=1e-4, atol=1e-5)
            assert np.allclose(dense[place].numpy(), HELD @ asked[n], atol=1e-5)
            seen.append(n)
    assert seen == list(range(len(queries)))


def mined_from(requests: list[Request], depths: Depths = DEPTHS, seed: int = 0) -> list[Candidates]:
    return list(searcher().mine(requests, vectors(len(requests), 3), depths, seed))


def test_a_judged_pool_is_the_first_of_each_order_and_some_from_further_down() -> None:
    requests = [Request(text, (n, n + 1)) for n, text in enumerate(documents(20, seed=1))]
    found = mined_from(requests)
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
    assert found == mined_from(requests) != mined_from(requests, seed=1), "far candidates depend on the seed alone"
    assert mined_from(requests[:1], Depths(fused=8, lexical=2, dense=3, far=4, farthest=30, found=5, fewest=40)) == []
    same = Searcher(["lake"] * 20, np.repeat(HELD[:1], 20, axis=0), torch.device("cpu"))
    (flat,) = same.mine([Request("lake", (3,))], vectors(1, 3), DEPTHS)
    assert flat.teacher == [0.0] * len(flat.rows), "a pool without spread teaches nothing"


def test_a_query_that_nobody_judged_is_kept_if_retrieval_finds_its_passage() -> None:
    queries = documents(40, seed=1)
    asked = vectors(40, 3)
    rank = [int((fused(q, v) > fused(q, v)[n]).sum()) for n, (q, v) in enumerate(zip(queries, asked, strict=True))]
    kept = {c.query for c in mined_from([Request(q, (n,), False) for n, q in enumerate(queries)])}
    assert kept == {q for q, r in zip(queries, rank, strict=True) if r < DEPTHS.found}
    assert 0 < len(kept) < 40
    assert len(mined_from([Request(q, (n,), True) for n, q in enumerate(queries)])) == 40


def test_what_both_orders_place_above_the_passage_is_no_negative_of_an_unjudged_query() -> None:
    queries = documents(40, seed=1)
    asked = vectors(40, 3)
    oracle, removed = BM25(TEXTS), 0
    judged = {c.query: c for c in mined_from([Request(q, (n,), True) for n, q in enumerate(queries)])}
    for candidates in mined_from([Request(q, (n,), False) for n, q in enumerate(queries)]):
        n = queries.index(candidates.query)
        words, near = oracle.scores(queries[n]), HELD @ asked[n]
        above = {row for row in range(60) if words[row] >= words[n] - 1e-6 and near[row] > near[n] + 1e-6}
        assert not above & set(candidates.rows)
        removed += len(above & set(judged[candidates.query].rows))
    assert removed


def test_batches_of_different_widths_stand_in_one_pool() -> None:
    """The 513th query begins a second batch, and its five positives make that one wider."""
    queries = documents(513, seed=1)
    requests = [Request(query, (n % 60,)) for n, query in enumerate(queries[:-1])]
    requests.append(Request(queries[-1], tuple(range(5, 10))))
    for ordered in (requests, requests[::-1]):
        found = mined_from(ordered)
        assert [c.query for c in found] == [r.query for r in ordered]
        for candidates, request in zip(found, ordered, strict=True):
            assert set(request.positive) <= set(candidates.rows) <= set(range(60))
            assert len(candidates.rows) == len(candidates.teacher)
