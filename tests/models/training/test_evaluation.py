"""The table: pools of a small set, scores by layer, and the order they give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge.models.training.corpora import Corpus  # noqa: E402
from edge.models.training.evaluation import judge, layer_scores, mean_ndcg, table  # noqa: E402
from edge.models.training.model import LayeredReranker, padded, pair_tokenizer  # noqa: E402
from edge.models.training.testpools import TestQuery, build  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
POOLS = [
    TestQuery("lake", ["river stone", "lake lamp", "tiger"], [0, 1, 0], [1], [1, 0, 0], [0, 1, 0]),
    TestQuery("bread", ["bread violin copper", "engine"], [1, 0], [1, 1], [1, 0], [0, 0]),
]


def bag(texts: list[str]) -> np.ndarray:
    rows = np.array([[t.split().count(w) + 0.01 for w in WORDS] for t in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_layer_scores_are_the_models_own_in_pool_order(tiny: Path) -> None:
    model = LayeredReranker.from_directory(tiny).eval()
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 32)
    found = layer_scores(model, tokenizer, POOLS, tokens=12, precision="float32")
    assert [s.shape for s in found] == [(3, 3), (3, 2)]
    with torch.inference_mode():
        alone = model(*padded([tokenizer.encode("lake", "lake lamp")]))[:, 0]
    assert np.allclose(found[0][:, 1], alone.numpy(), atol=1e-5)


def test_judge_gives_each_order_its_own_figure() -> None:
    scores = [np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])]
    row = judge("set", POOLS, scores, weight=1.0)
    best_of_two = 1 / (1 + 1 / np.log2(3))
    assert row.layers[0] == pytest.approx((1 + best_of_two) / 2)
    assert row.alone == row.layers[1] == row.blended < row.layers[0]
    assert row.lexical == pytest.approx((1 + best_of_two) / 2)
    assert row.fused == pytest.approx((1 / np.log2(3) + best_of_two) / 2)
    assert "| set | 2 |" in table([row])


def test_scoped_ids_are_searched_within_their_scope() -> None:
    corpus = Corpus(
        "talks",
        ["a/0", "a/1", "b/0", "b/1"],
        [""] * 4,
        ["lake river", "stone cloud", "lake lake", "tiger lamp"],
        {"a/q": "lake"},
        {},
        {"a/q": {"a/0": 1}},
    )
    (found,) = build(corpus, bag, limit=5)
    assert set(found.passages) == {"lake river", "stone cloud"}
    assert found.grades[0] == 1
    assert mean_ndcg([found], [np.array([1.0, 0.0])]) == 1.0


def test_the_sample_depends_on_its_seed_alone() -> None:
    corpus = Corpus(
        "many",
        [f"d{n}" for n in range(30)],
        [""] * 30,
        [WORDS[n % 12] for n in range(30)],
        {f"q{n}": WORDS[n % 12] for n in range(30)},
        {},
        {f"q{n}": {f"d{n}": 1} for n in range(30)},
    )
    assert build(corpus, bag, 5, seed=1) == build(corpus, bag, 5, seed=1)
    assert [p.ideal for p in build(corpus, bag, 5)] == [[1]] * 5
