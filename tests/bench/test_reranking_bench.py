"""Benchmarks of reranking: peers, single layers, the core's own time, and memories."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making.judged_set import judged_set
from making.synth import synth, synth_checkpoint
from naive.program import output_of

from bench.command import bench
from bench.layer_speed import layer_speed
from bench.memory import ask_evidence, turns_of
from bench.overhead import PARTS, overhead
from bench.rerank_memory import rerank_memory
from bench.rerank_peers import JudgedPool, read_pools
from bench.run_record import RunRecord
from edge.errors import EdgeError, InputError
from edge.models.training.corpora import load
from edge.runtimes.native.library import processor_level

WORDS = ["river", "bridge", "ice", "summer", "valley", "mill", "glacier", "winter", "stone", "water"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return synth_checkpoint("tiny-bert", tmp_path / "tiny")


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    """Two queries with 14 candidates each, one of them much longer than a query and a candidate may be."""
    path = tmp_path / "rivers.test.jsonl"
    lines = []
    for first in (0, 3):
        docs = [" ".join(WORDS[(first + i * j) % 10] for j in range(1, 5 + i)) for i in range(13)]
        docs.append(" ".join(WORDS * 20))
        lines.append({"query": f"the {WORDS[first]} in winter", "docs": docs, "grades": [1.0] + [0.0] * 13})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def run(*arguments: str | Path) -> Any:
    shown = output_of(bench, "rerank-peers", *map(str, arguments))
    return json.loads(shown) if "--json" in arguments else shown


def test_a_model_with_rotary_positions(pools: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    report = run(
        pools, "--checkpoint", synth_checkpoint("tiny-modernbert", tmp_path / "modern"), "--max-tokens", "48",
        "--systems", "edge,transformers", "--precisions", "fp32", "--memory", "10GB", "--rounds", "1",
        "--work-dir", tmp_path / "work", "--json",
    )  # fmt: skip
    same = {name: found["same"] for name, found in report["systems"].items()}
    assert same == {"edge, fp32": 1.0, "transformers, fp32": 1.0}


def test_a_peer_that_is_not_installed_is_left_out(
    checkpoint: Path, pools: Path, tmp_path: Path, stand_ins: Callable[[dict[str, str]], None]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    stand_ins({"flashrank.py": "import a_module_that_nobody_has"})
    stored = tmp_path / "run.json"
    report = run(
        pools, "--checkpoint", checkpoint, "--systems", "edge,flashrank,fastembed", "--precisions", "fp32", "--memory",
        "10GB", "--rounds", "2", "--work-dir", tmp_path / "work", "--store", stored, "--json", "--fastembed-python",
        tmp_path / "no-python",
    )  # fmt: skip
    assert list(report["systems"]) == ["edge, fp32"]
    assert len(report["systems"]["edge, fp32"]["seconds"]) == 2
    notes = RunRecord.load(stored).notes
    assert len(notes) == 2, "each peer is tried and named once"
    assert "a_module_that_nobody_has" in notes[0]
    assert "no-python" in notes[1]


def test_this_program_alone_needs_no_torch(checkpoint: Path, pools: Path, tmp_path: Path) -> None:
    shown = run(
        pools, "--checkpoint", checkpoint, "--systems", "edge", "--precisions", "int8", "--memory", "10GB", "--rounds",
        "1", "--work-dir", tmp_path / "work",
    )  # fmt: skip
    assert "edge, int8" in shown
    assert "order of retrieval" in shown


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


def test_systems_compute_the_same(tmp_path: Path, measured_here: Callable[[str], None]) -> None:
    measured_here("layer_speed")
    options = ["--shapes", "tiny-bert", "--sequences", "9", "--tokens", "30", "--rounds", "2", "--threads", "1"]
    shapes = json.loads(output_of(layer_speed, *options, "--json", "--store", str(tmp_path / "run.json")))["shapes"]
    found, left_out = shapes["tiny-bert"]["systems"], shapes["tiny-bert"]["left_out"]
    assert {*found, *left_out} == {"native", "onnx", "onnxruntime", "transformers"}
    assert "onnx" in found
    assert ("native" in found) == (processor_level() > 0)
    for row in found.values():
        assert len(row["seconds"]) == len(row["cpu"]) == 2
        assert min(row["seconds"]) > 0
        assert row["apart"] < 0.03  # int8 against fp32, activations of deviation 1
    run = RunRecord.load(tmp_path / "run.json")
    assert {figure.row for figure in run.figures} == set(found)
    assert {figure.row for figure in run.figures if figure.peer} == {"onnxruntime", "transformers"} & set(found)
    assert all(len(figure.rounds) == 2 for figure in run.figures)
    if "native" in found:
        assert found["onnx"]["apart"] < 1e-3


def test_parts_make_up_the_whole(tmp_path: Path, measured_here: Callable[[str], None]) -> None:
    measured_here("overhead")
    packed = synth("tiny-bert", tmp_path / "pack")
    options = [
        "--model", str(packed.path), "--candidates", "5", "--tokens", "40", "--memory", "4GB", "--rows", "400", "--dim",
        "16", "--nprobe", "3", "--rounds", "2", "--threads", "1", "--work-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    report = json.loads(output_of(overhead, *options, "--store", str(tmp_path / "run.json")))
    for name, rounds in report["rerank"]["arms"].items():
        assert len(rounds) == 2
        for row in rounds:
            assert row["seconds"] == pytest.approx(row["core"] + sum(row[part] for part in PARTS))
            assert min(row["core"], *(row[part] for part in PARTS)) > 0, name
    layers = {name: sum(row["layers"] for row in rounds) for name, rounds in report["rerank"]["arms"].items()}
    assert layers["null"] < layers["layers"]
    assert all(min(seconds) > 0 for seconds in report["search"].values())
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == {"layers", "null", "cpu"}


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    """Two conversations of four turns, with a question about each."""
    dates = ("1:56 pm on 8 May, 2023", "12:05 am on 9 June, 2023")
    turns = [(f"c{n // 4}/{n}", dates[n % 2], f"Anna: mill number {n} grinds {n * 7} bags of flour.") for n in range(8)]
    asked = {f"c{n}/q": f"what does mill number {4 * n} grind?" for n in range(2)}
    return judged_set(tmp_path / "conversations", turns, asked, {"test": [("c0/q", "c0/0", 1), ("c1/q", "c1/4", 1)]})


@pytest.mark.usefixtures("tiny_settings")
def test_questions_are_asked_in_their_conversation(conversations: Path) -> None:
    assert [len(said) for said in turns_of(load(conversations)).values()] == [2, 2, 2, 2]
    report = ask_evidence({"data": str(conversations), "questions": 0, "memory": 10**11})
    assert (report["turns"], report["questions"]) == (8, 2)
    assert list(report["systems"]) == ["bm25, text alone", "fused", "bm25", "vectors", "fused + rerank"]
    for name, row in report["systems"].items():
        assert row["recall"] == 1.0, "ten results hold all four turns of a conversation"
        assert ("seconds" in row) == name.startswith("fused")
    assert report["systems"]["bm25"]["ndcg"] == 1.0, "one turn has the number"
    assert ask_evidence({"data": str(conversations), "questions": 1, "memory": 10**11})["questions"] == 1
    (conversations / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(InputError, match="no questions with evidence"):
        ask_evidence({"data": str(conversations), "questions": 0, "memory": 10**11})


def test_the_same_candidates_are_ranked_within_a_limit(tmp_path: Path) -> None:
    options = [
        "--shape", "tiny-bert", "--candidates", "5", "--tokens", "40", "-k", "3", "--threads", "1", "--rounds", "1",
        "--systems", "streamed,onnxruntime", "--work-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    report = json.loads(output_of(rerank_memory, *options, "--memory", "1GB", "--store", str(tmp_path / "run.json")))
    for name, row in report["systems"].items():
        assert row["agreed"] == 1.0, name
        assert len(row["scores"]) == 3
        assert row["peak_resident"] > 1 << 20
    figures = RunRecord.load(tmp_path / "run.json").figures
    assert {figure.row for figure in figures if figure.peer} == {"onnxruntime"}
    with pytest.raises(EdgeError):
        output_of(rerank_memory, *options, "--memory", "1MB")
