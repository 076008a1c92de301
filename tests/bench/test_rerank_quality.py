"""`rerank-quality` on pools of a tiny random model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from making.synth import synth
from naive.program import output_of

from bench.rerank_quality import JudgedPool, read_pools, rerank_quality
from bench.run_record import RunRecord
from edge.errors import InputError

POOL = {
    "query": "when does the river flood", "docs": ["in spring", "it rains", "the mill", "old ice"],
    "grades": [0, 1, 1, 0], "ideal": [1], "scores": [0.9, 0.5, 0.4, 0.1], "documents": ["a", "b", "b", "c"],
}  # fmt: skip


def test_a_document_counts_where_it_comes_first() -> None:
    pool = JudgedPool("q", POOL["docs"], POOL["grades"], POOL["ideal"], True, POOL["documents"])  # type: ignore[arg-type]
    assert pool.ndcg([4, 3, 2, 1]) == pytest.approx(1 / math.log2(3))
    assert pool.ndcg([1, 2, 4, 3]) == 1.0
    assert pool.ndcg([4, 1, 0, 3]) == pytest.approx(1 / math.log2(4))
    assert pool.cut(1).ndcg([1]) == 0.0


def test_pools_are_read_with_what_retrieval_said(tmp_path: Path) -> None:
    plain = {name: POOL[name] for name in ("query", "docs", "grades")}
    (tmp_path / "p.jsonl").write_text(json.dumps(POOL) + "\n" + json.dumps(plain) + "\n")
    first, second = read_pools(tmp_path / "p.jsonl", 10)
    assert first.retrieved == POOL["scores"]
    assert first.cut(2).retrieved == [0.9, 0.5]
    assert second.retrieved is True
    assert second.documents is None
    assert second.ideal == [0, 1, 1, 0]
    (tmp_path / "p.jsonl").write_text(json.dumps({**plain, "grades": [1]}))
    with pytest.raises(InputError, match="line 1: 4 docs but 1 grades"):
        read_pools(tmp_path / "p.jsonl", 10)


def test_both_tables_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth("tiny-bert", tmp_path / "models" / "tiny").close()
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("EDGE_MEMORY", "10GB")
    (tmp_path / "p.jsonl").write_text(json.dumps(POOL) + "\n")
    arguments = [str(tmp_path / "p.jsonl"), "--model", "tiny", "--candidates", "4", "-k", "2", "--json"]
    arguments += ["--store", str(tmp_path / "run.json")]
    report = json.loads(output_of(rerank_quality, *arguments).splitlines()[-1])
    (quality,), (pruned,) = report["quality"], report["pruning"]
    assert {figure.table for figure in RunRecord.load(tmp_path / "run.json").figures} == {"nDCG@10", "pruning"}
    assert quality["retrieved"] == pytest.approx(1 / math.log2(3))
    assert 0 < quality["blended"] <= 1
    assert pruned["overlap"] == 1.0  # a model without calibration never prunes
    assert pruned["evaluations"] == 1.0
