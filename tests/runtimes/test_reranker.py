"""The oracle: scores equal Hugging Face's, and no arrangement of memory changes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, CorruptBlock, InputError, ModelError
from edge.models.packed import PackedModel
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Reranker

GOLDEN = Path(__file__).parents[1] / "golden"
RERANKERS = ["bert-reranker", "xlm-roberta-reranker", "qwen3-reranker"]
QUERY = "which river floods in spring"
DOCS = [" ".join(f"word{(i * j) % 37} river" for j in range(1, 3 + 5 * i)) for i in range(9)]


def scores_of(reranker: Reranker, query: str = QUERY, docs: list[str] = DOCS) -> np.ndarray:
    ranked = reranker.rank(query, docs, threshold="inf")
    scores = np.empty(len(docs))
    for result in ranked:
        scores[result.index] = result.score
    return scores


@pytest.mark.parametrize("name", RERANKERS)
def test_scores_equal_hugging_face(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker], name: str
) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))
    reranker = open_reranker(pack(name), max_tokens=expected["max_tokens"])
    found = scores_of(reranker, expected["query"], expected["docs"])
    assert np.abs(found - expected["scores"]).max() < 1e-4


ARRANGEMENTS = {
    "chunk of one": Tuning(chunk_tokens=1),
    "small chunks": Tuning(chunk_tokens=70),
    "two layers": Tuning(buffers=2),
    "offloaded": Tuning(offload=True, chunk_tokens=70),
    "few rows": Tuning(row_share=0.0),
    "everything tight": Tuning(row_share=0.0, chunk_tokens=1, buffers=2, offload=True),
}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("tiny-bert", "fp32"), ("tiny-bert", "int8"), ("tiny-xlm-roberta", "fp16"), ("tiny-xlm-roberta", "int8"),
        ("tiny-qwen3", "fp16"),
    ],
)  # fmt: skip
def test_scores_do_not_depend_on_the_arrangement(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker], name: str, precision: str
) -> None:
    path = pack(name, precision)
    plain = open_reranker(path)
    expected = scores_of(plain)
    assert np.ptp(expected) > 1e-3, "scores must differ for this test to mean anything"
    tolerance = 1e-5 if precision == "fp32" else 2e-3
    for label, tuning in ARRANGEMENTS.items():
        reranker = open_reranker(path, tuning=tuning)
        found = scores_of(reranker)
        assert np.abs(found - expected).max() < tolerance, label
        assert [r.index for r in reranker.rank(QUERY, DOCS, 3)] == [r.index for r in plain.rank(QUERY, DOCS, 3)], label
        stats = reranker.engine.stats
        if tuning.offload:
            assert stats.offloaded
        if tuning.buffers:
            assert stats.buffers == tuning.buffers
        reranker.close()


def test_scores_do_not_depend_on_order_or_company(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker]
) -> None:
    reranker = open_reranker(pack("tiny-bert"))
    expected = scores_of(reranker)

    @settings(max_examples=15)
    @given(st.lists(st.integers(0, len(DOCS) - 1), min_size=1, max_size=9, unique=True))
    def check(chosen: list[int]) -> None:
        found = scores_of(reranker, docs=[DOCS[i] for i in chosen])
        assert np.abs(found - expected[chosen]).max() < 1e-5

    check()


def test_pruning_saves_evaluations_and_explains_itself(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker]
) -> None:
    reranker = open_reranker(pack("tiny-bert"))
    full = reranker.explain(QUERY, DOCS, 2, threshold="inf")
    assert full.stats.evaluations == full.stats.evaluations_full
    for mode in ("ranked", "top-k"):
        ranking = reranker.explain(QUERY, DOCS, 2, threshold=0.0, mode=mode)  # type: ignore[arg-type]
        assert len(ranking.results) == 2
        assert ranking.stats.evaluations < ranking.stats.evaluations_full
        first = ranking.layers[0]
        parts = [*first.decision.selected, *first.decision.dropped, *first.decision.deferred]
        assert sorted(parts) == list(range(len(DOCS)))
    # In ranked mode every returned candidate has run to the end: the score is the full-depth score.
    ranked = reranker.explain(QUERY, DOCS, 2, threshold=0.0, mode="ranked")
    exact = {r.index: r.score for r in reranker.rank(QUERY, DOCS, threshold="inf")}
    for result in ranked.results:
        assert result.score == pytest.approx(exact[result.index], abs=1e-5)


@pytest.mark.parametrize("k", [1, 4, 9, 50])
def test_top_k_is_the_beginning_of_the_whole_ranking(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker], k: int
) -> None:
    reranker = open_reranker(pack("tiny-bert"))
    whole = reranker.rank(QUERY, DOCS, threshold="inf")
    assert [r.score for r in whole] == sorted((r.score for r in whole), reverse=True)
    some = reranker.rank(QUERY, DOCS, k, threshold="inf")
    assert [r.index for r in some] == [r.index for r in whole[:k]]


def test_bad_input_is_one_sentence(pack: Callable[..., Path], open_reranker: Callable[..., Reranker]) -> None:
    reranker = open_reranker(pack("tiny-bert"))
    for call in (
        lambda: reranker.rank("", DOCS),
        lambda: reranker.rank("  ", DOCS),
        lambda: reranker.rank(QUERY, []),
        lambda: reranker.rank(QUERY, DOCS, 0),
        lambda: reranker.rank(QUERY, DOCS, -3),
        lambda: reranker.rank(QUERY, DOCS, 1.5),  # type: ignore[arg-type]
        lambda: reranker.rank(QUERY, "one text"),
        lambda: reranker.rank(QUERY, (text for text in DOCS)),  # type: ignore[arg-type]
        lambda: reranker.rank(QUERY, set(DOCS)),  # type: ignore[arg-type]
        lambda: reranker.rank(QUERY, dict(enumerate(DOCS))),  # type: ignore[arg-type]
        lambda: reranker.rank(QUERY, None),  # type: ignore[arg-type]
        lambda: reranker.rank(None, DOCS),  # type: ignore[arg-type]
        lambda: reranker.rank(QUERY, DOCS, retrieved="best firs"),
        lambda: reranker.rank(QUERY, DOCS, mode="top_k"),  # type: ignore[arg-type]
        lambda: open_reranker(pack("tiny-bert"), mode="best"),
        lambda: open_reranker(pack("tiny-bert"), max_tokens=-2),
        lambda: open_reranker(pack("tiny-bert"), max_tokens=5.5),
        lambda: reranker.rank("half a pair \ud800", DOCS),
        lambda: reranker.rank(QUERY, ["fine", "half a pair \ud800"]),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert len(reranker.rank(QUERY, DOCS, 2)) == 2, "it still works"
    assert reranker.rank(QUERY, ["word " * 5000])[0].score > 0, "a long document is cut"


@pytest.mark.parametrize("step", ["_begin", "run"])
def test_one_that_is_closed_under_way_says_so(
    pack: Callable[..., Path], open_reranker: Callable[..., Reranker], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    reranker = open_reranker(pack("tiny-bert"))
    whole = getattr(reranker.engine, step)

    def closed(*arguments: Any) -> Any:
        reranker.close()
        return whole(*arguments)

    monkeypatch.setattr(reranker.engine, step, closed)
    with pytest.raises(InputError, match="has been closed"):
        reranker.rank(QUERY, DOCS)
    assert set(reranker.budget.holders()) <= {"process", "libraries"}


def test_not_a_number_in_the_weights(pack: Callable[..., Path], tmp_path: Path) -> None:
    source = pack("tiny-bert")
    target = tmp_path / "broken"
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    with PackedModel.open(target) as model:
        offset = model.file.extents[model.layer_blocks[1]].offset
    data = bytearray((target / "model.safetensors").read_bytes())
    data[offset : offset + 4] = np.float32(math.nan).tobytes()
    (target / "model.safetensors").write_bytes(data)
    with Reranker(target, memory="40GB") as reranker, pytest.raises(CorruptBlock, match=r"layer\.1"):
        reranker.rank(QUERY, DOCS)
    with pytest.raises(ModelError, match="embedder"):
        Reranker(str(pack("bert-embedder")), memory="40GB")


def test_caches_give_way_to_a_model_that_opens_and_to_one_that_runs(pack: Callable[..., Path], tmp_path: Path) -> None:
    path = pack("tiny-bert")
    config = Config(memory=1, scratch_dir=str(tmp_path))
    with pytest.raises(BudgetExceeded) as caught:
        Reranker(path, config=config)
    budget = MemoryBudget(caught.value.needed + 10_000_000)
    lease = budget.reserve("cache", budget.free)
    budget.add_shrinker("cache", lambda nbytes: lease.resize(max(0, lease.nbytes - nbytes)), loss=0.0)
    with Reranker(path, config=config, budget=budget) as reranker:
        expected = reranker.rank(QUERY, DOCS, 3)
        lease.resize(lease.nbytes + budget.free)
        assert reranker.rank(QUERY, DOCS, 3) == expected
        assert lease.nbytes > 0


def test_a_score_is_the_same_to_the_last_bit_whatever_else_is_ranked() -> None:
    """With the model of the installation: its head is large enough for a product of matrices to round differently."""
    docs = ["The river floods", *(f"{word} needs time and patience " * n for n, word in enumerate("abcdefgh", 1))]
    with Reranker(config=Config(memory=10**11)) as reranker:
        scores = {found.index: found.score for found in reranker.rank("river", docs)}
        for count in range(1, 6):
            assert all(found.score == scores[found.index] for found in reranker.rank("river", docs, top_k=count))
            assert all(found.score == scores[found.index] for found in reranker.rank("river", docs[:count]))
