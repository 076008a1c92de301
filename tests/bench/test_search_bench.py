"""Benchmarks of searches: peers, quality, and the index."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth_checkpoint
from naive.program import output_of

from bench import index as bench
from bench.command import bench as benchmarks
from bench.index import work
from bench.run_record import RunRecord
from bench.search import Sample, score, stages_of
from bench.vectors import NEIGHBOURS, VectorSet
from edge.apps.collection.hits import Hit, Stages
from edge.errors import CapabilityError, InputError
from edge.models.training.corpora import Corpus, load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return synth_checkpoint("tiny-bert-embedder", tmp_path / "tiny")


def run(*arguments: str | Path) -> Any:
    shown = output_of(benchmarks, "search-peers", *map(str, arguments))
    return json.loads(shown) if "--json" in arguments else shown


@pytest.mark.usefixtures("tiny_settings")
def test_peers_that_are_not_installed_are_left_out(
    judged: Path, model: Path, tmp_path: Path, stand_ins: Callable[[dict[str, str]], None]
) -> None:
    stand_ins({f"{name}.py": "import a_module_that_nobody_has" for name in ("txtai", "leann")})
    stored = tmp_path / "run.json"
    options = [judged, "--model", model, "--memory", "10GB", "--rounds", "1", "--work-dir", tmp_path / "work"]
    shown = run(*options, "--store", stored)
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
    whole = Sample.of(corpus, 999, 999)
    assert [row[0] for row in whole.documents] == corpus.ids
    assert len(whole.queries) == 10
    fewest = Sample.of(corpus, 1, 10)
    assert len(fewest.documents) == 5, "every paragraph answers a question, and is kept"


CORPUS = Corpus("set", ["s/a", "s/b", "s/c"], [""] * 3, ["a", "b", "c"], {"s/q": "what"})


def hit(path: str, lexical: int | None, vector: int | None, fused: int) -> Hit:
    stages = Stages(lexical, None, vector, None, fused, 1 / fused)
    return Hit(
        id=fused, path=path, line_start=1, line_end=1, page=None, score=1 / fused, snippet="", text=path, title="",
        kind="text", context="", file=1, ordinals=(0, 0), stages=stages,
    )  # fmt: skip


class Asked:
    """Stands for a collection: two passages of one document, and the reranker turns the order round."""

    def __init__(self) -> None:
        self.where: Any = None

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.zeros((len(queries), 2), np.float32)

    def candidates(self, query: str, vector: np.ndarray, k: int, *, where: Any) -> list[Hit]:
        self.where = where
        return [hit("s/a", 2, 1, 1), hit("s/b", 1, None, 2), hit("s/a", None, 2, 3), hit("s/c", None, 3, 4)]

    def rerank(self, query: str, hits: list[Hit]) -> list[Hit]:
        return [replace(h, score=1.0) for h in reversed(hits)]


def test_each_stage_is_judged_by_its_own_order(tmp_path: Path) -> None:
    collection = Asked()
    judged = {"s/q": {"s/b": 1, "s/z": 1}}
    row = stages_of(collection, CORPUS, judged, ["s/q"], 30, tmp_path / "pools" / "set.jsonl")  # type: ignore[arg-type]
    ideal = 1 + 1 / math.log2(3)
    assert collection.where == ["path:s/*"]
    assert row == {
        "queries": 1,
        "bm25": pytest.approx(1 / ideal),
        "vectors": 0.0,
        "fused": pytest.approx(1 / math.log2(3) / ideal),
        "reranked": pytest.approx(1 / math.log2(4) / ideal),  # c, a, b: the document that comes twice counts once
    }
    assert json.loads((tmp_path / "pools" / "set.jsonl").read_text()) == {
        "query": "what", "docs": ["s/a", "s/b", "s/a", "s/c"], "grades": [0, 1, 0, 0], "ideal": [1, 1],
        "scores": [1.0, 1 / 2, 1 / 3, 1 / 4], "documents": ["s/a", "s/b", "s/a", "s/c"],
        "domain": CORPUS.name,
    }  # fmt: skip


def test_a_document_counts_once() -> None:
    assert score(["a", "a", "b"], {"b": 1}) == pytest.approx(1 / math.log2(3))
    assert score([], {"b": 1}) == 0.0


@pytest.mark.parametrize("real", [True, False])
def test_a_set_is_made_once_with_its_exact_answers(tmp_path: Path, real: bool) -> None:
    base = None
    if real:
        vectors = np.random.default_rng(1).standard_normal((60, 12)).astype(np.float32)
        base = tmp_path / "base.npy"
        np.save(base, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
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


def test_enough_real_embeddings_are_the_rows_themselves(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((60, 12)).astype(np.float32)
    np.save(tmp_path / "base.npy", vectors)
    made = VectorSet.made(tmp_path / "set", rows=50, queries=5, base=tmp_path / "base.npy")
    assert np.array_equal(made.mapped(), vectors[:50])
    assert np.array_equal(made.queries, vectors[55:])
    assert "noise" not in made.kind


def test_a_changed_index_holds_the_last_rows_and_no_others(tmp_path: Path) -> None:
    vectors = VectorSet.made(tmp_path / "set", rows=900, queries=6, base=None)
    task = {
        "set": str(vectors.folder), "index": str(tmp_path / "index"), "memory": 10**11, "codec": "auto", "recall": 0.95,
        "nprobe": None, "cold": 0, "changed": 90, "end": 810,
    }  # fmt: skip
    (tmp_path / "index").mkdir()
    assert work(task | {"action": "build"})["rows"] == 810
    assert work(task | {"action": "change"})["rows"] == 810
    found = work(task | {"action": "search"})["ids"]
    for ids, truth in zip(found, vectors.neighbours(90).tolist(), strict=True):
        assert set(ids) == set(truth)
        assert min(ids) >= 90


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(worker: Any, task: dict[str, Any], **options: Any) -> dict[str, Any]:
        if task["name"] == "usearch":
            raise CapabilityError("No module named 'usearch'")
        return real(worker, task, **options)

    real = bench.measure
    monkeypatch.setattr(bench, "measure", measured)
    report = json.loads(
        output_of(
            bench.index, "--rows", "900", "--queries", "8", "--cold", "1", "--memory", "4GB", "--systems",
            "edge,usearch", "--window", "0.01", "--lookahead", "disk", "--work-dir", str(tmp_path), "--json",
        )
    )  # fmt: skip
    assert list(report["systems"]) == ["edge"]
    assert report["missing"] == {"usearch": "usearch was left out: No module named 'usearch'."}
    assert report["systems"]["edge"]["recall"] > 0.9
    assert report["lookahead"]["disk"]["same"]
