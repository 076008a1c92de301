"""Benchmarks of searches: peers, quality, and the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth_checkpoint
from naive.program import output_of

from bench import index as benchmark
from bench.rerank_peers import score
from bench.run_record import RunRecord
from bench.search import Sample, search_peers, search_quality
from bench.vectors import NEIGHBOURS, VectorSet
from edge.errors import CapabilityError, InputError
from edge.models.training.corpora import load


@pytest.mark.usefixtures("tiny_settings")
def test_peers_that_are_not_installed_are_left_out(
    judged: Path, tmp_path: Path, stand_ins: Callable[[dict[str, str]], None]
) -> None:
    stand_ins({f"{name}.py": "import a_module_that_nobody_has" for name in ("txtai", "leann")})
    stored, model = tmp_path / "run.json", synth_checkpoint("tiny-bert-embedder", tmp_path / "tiny")
    options = ["--model", str(model), "--memory", "10GB", "--rounds", "1", "--work-dir", str(tmp_path / "work")]
    shown = output_of(search_peers, str(judged), *options, "--store", str(stored))
    assert "edge, no reranking" in shown
    assert "txtai" not in shown
    assert len(RunRecord.load(stored).notes) == 3


def test_a_sample_holds_what_answers_its_questions(judged: Path) -> None:
    corpus = load(judged)
    sample = Sample.of(corpus, 3, 2)
    assert len(sample.documents) == 3
    assert len(sample.queries) == len(sample.grades) == 2
    assert {name for grades in sample.grades for name in grades} <= {row[0] for row in sample.documents}
    assert sample == Sample.of(corpus, 3, 2)
    assert [row[0] for row in Sample.of(corpus, 999, 999).documents] == corpus.ids
    assert len(Sample.of(corpus, 1, 10).documents) == 5, "every paragraph answers a question, and is kept"


@pytest.mark.usefixtures("tiny_settings")
def test_each_stage_of_search_is_judged(judged: Path, tmp_path: Path) -> None:
    options = ["--memory", "10GB", "--pool", "5", "--pools", str(tmp_path / "pools"), "--json"]
    report = json.loads(output_of(search_quality, str(judged), *options))
    row, corpus = report["ndcg@10"]["judged"], load(judged)
    pools = [json.loads(line) for line in (tmp_path / "pools" / "judged.test.jsonl").read_text().splitlines()]
    assert row["queries"] == len(pools) == 10
    assert set(row) == {"bm25", "vectors", "fused", "reranked", "queries"}
    fused = []
    for pool in pools:
        (query,) = (number for number, text in corpus.queries.items() if text == pool["query"])
        grades = corpus.test[query]
        assert pool["grades"] == [grades.get(document, 0) for document in pool["documents"]]
        assert pool["scores"] == sorted(pool["scores"], reverse=True)
        assert pool["ideal"] == [1]
        fused.append(score(pool["documents"], grades))
    assert row["fused"] == pytest.approx(np.mean(fused))
    assert row["bm25"] > row["vectors"] < row["fused"], "an embedder with random weights knows nothing"


@pytest.mark.parametrize("real", [True, False])
def test_a_set_is_made_once_with_its_exact_answers(tmp_path: Path, real: bool) -> None:
    base, vectors = None, np.random.default_rng(1).standard_normal((60, 12)).astype(np.float32)
    if real:
        base = tmp_path / "base.npy"
        np.save(base, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        enough = VectorSet.made(tmp_path / "enough", rows=50, queries=5, base=base)
        assert np.array_equal(enough.mapped(), np.load(base)[:50])
        assert np.array_equal(enough.queries, np.load(base)[55:])
    made = VectorSet.made(tmp_path / "set", rows=300, queries=5, base=base)
    assert ("real embeddings" in made.kind) == real
    rows = np.concatenate([block for _, block in made.blocks()])
    assert rows.shape == (300, made.dim)
    assert np.array_equal(rows, made.mapped())
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(300), abs=1e-5)
    for query, truth in zip(made.queries, made.truth, strict=True):
        assert set(np.argsort(-(rows @ query))[:NEIGHBOURS].tolist()) == set(truth.tolist())
    written = made.path.stat().st_mtime_ns
    assert VectorSet.made(tmp_path / "set", rows=300, queries=5, base=base) == made
    assert made.path.stat().st_mtime_ns == written
    with pytest.raises(InputError, match="another set"):
        VectorSet.made(tmp_path / "set", rows=301, queries=5, base=base)


def test_an_index_is_measured_changed_and_beside_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(worker: Any, task: dict[str, Any], **options: Any) -> dict[str, Any]:
        if task["name"] == "usearch":
            raise CapabilityError("No module named 'usearch'")
        return worker(task) | {"peak_resident": 1, "peak_with_files": 1}

    monkeypatch.setattr(benchmark, "measure", measured)
    report = json.loads(
        output_of(
            benchmark.index, "--rows", "900", "--queries", "8", "--cold", "1", "--memory", "100GB", "--systems",
            "edge,faiss-ram,faiss-ondisk,usearch", "--window", "0.01", "--lookahead", "disk", "--churn", "0.1",
            "--work-dir", str(tmp_path), "--json",
        )
    )  # fmt: skip
    assert list(report["systems"]) == ["edge", "faiss-ram", "faiss-ondisk"]
    assert report["missing"] == {"usearch": "usearch was left out: No module named 'usearch'."}
    assert min(row["recall"] for row in report["systems"].values()) > 0.9
    assert report["identical_to_faiss"] == 1.0
    assert report["lookahead"]["disk"]["same"]
    assert report["churn"]["changed"]["recall"] == report["churn"]["fresh"]["recall"] == 1.0
