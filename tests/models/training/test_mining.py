"""Candidate pools and lists: against naive twins, and without leaks."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

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


def test_bm25_equals_the_formula() -> None:
    texts = documents(40)
    for query in ("lake tiger", "engine engine", "nowhere"):
        assert np.allclose(BM25(texts).scores(query), naive_bm25(texts, query), rtol=1e-4, atol=1e-5)


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


def test_negatives_take_what_there_is_in_a_small_pool() -> None:
    row = Candidates("q", [4, 5, 6], [5], [0.0, 1.0, 0.0])
    assert sorted(negatives(row, 5, 10, random.Random(0))) == [0, 2]


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


def test_packed_lists_are_read_by_number_and_by_slice() -> None:
    _, lists = mined()
    assert lists[2:5] == [lists[2], lists[3], lists[4]]
    assert lists[-1] == lists[len(lists) - 1]


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


def test_no_pools_and_empty_pools_are_errors() -> None:
    with pytest.raises(ValueError, match="no training pools"):
        Mixture([], 0, ListConfig())
    with pytest.raises(ValueError, match="empty holds no list"):
        Mixture([("empty", Pool("p", [], [], []), 1.0)], 0, ListConfig())


def test_a_title_query_sees_no_titles_and_a_cloze_query_sees_the_cut_text() -> None:
    pool = Pool("p", ["ONE", "TWO"], ["first text", "second text"], [])
    row = Candidates("ONE", [0, 1], [0], [1.0, 0.0], False, bare=True, replaced="cut text")
    calm = ListConfig(window_share=0.0, keyword_share=0.0)
    assert shown(pool, row, "p", random.Random(0), calm).passages == ["cut text", "second text"]


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


def test_keywords_are_never_empty() -> None:
    assert keywords("What is the capital of France?") == "capital France"
    assert keywords("who is it?") == "who is it?"
