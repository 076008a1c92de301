"""Benchmarks of reranking: peers, single layers, the core's own time, and memories."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from making.judged_set import judged_set
from making.synth import synth, synth_checkpoint
from naive.program import output_of

from bench.layer_speed import layer_speed
from bench.memory import ask_evidence, turns_of
from bench.overhead import PARTS, overhead
from bench.rerank_memory import rerank_memory
from bench.rerank_peers import read_pools, rerank_peers, score
from bench.run_record import RunRecord
from edge.errors import EdgeError, InputError
from edge.models.training.corpora import load
from edge.runtimes.native.library import processor_level

POOL = {
    "query": "when does the river flood", "docs": ["in spring", "it rains", "the mill", "old ice"],
    "grades": [0, 1, 1, 0], "ideal": [1], "scores": [0.9, 0.5, 0.4, 0.1], "documents": ["a", "b", "b", "c"],
}  # fmt: skip
PLAIN = {name: POOL[name] for name in ("query", "docs", "grades")}


def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path, stand_ins: Callable[[dict[str, str]], None]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    stand_ins({"flashrank.py": "import a_module_that_nobody_has"})
    pools = tmp_path / "rivers.test.jsonl"
    pools.write_text("".join(json.dumps(pool) + "\n" for pool in (PLAIN, PLAIN | {"docs": ["ice " * 300] * 4})))
    options = [
        str(pools), "--checkpoint", str(synth_checkpoint("tiny-bert", tmp_path / "tiny")), "--precisions", "fp32",
        "--systems", "edge,flashrank,fastembed,transformers", "--memory", "10GB", "--work-dir", str(tmp_path / "work"),
        "--fastembed-python", str(tmp_path / "no-python"), "--max-tokens", "64",
    ]  # fmt: skip
    report = json.loads(output_of(rerank_peers, *options, "--store", str(tmp_path / "run.json"), "--json"))
    assert {name: found["same"] for name, found in report["systems"].items()} == {
        "edge, fp32": 1.0, "transformers, fp32": 1.0
    }  # fmt: skip
    assert len(report["systems"]["edge, fp32"]["seconds"]) == 2
    notes = RunRecord.load(tmp_path / "run.json").notes
    assert len(notes) == 2, "each peer is tried and named once"
    assert "a_module_that_nobody_has" in notes[0]
    assert "no-python" in notes[1]


def test_pools_are_read_and_a_document_counts_where_it_comes_first(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(POOL) + "\n" + json.dumps(PLAIN) + "\n")
    pool, plain = read_pools(tmp_path / "p.jsonl", 10)
    assert pool.ndcg([4, 3, 2, 1]) == pytest.approx(1 / math.log2(3))
    assert pool.ndcg([1, 2, 4, 3]) == 1.0
    assert pool.ndcg([4, 1, 0, 3]) == pytest.approx(1 / math.log2(4))
    assert pool.cut(1).ndcg([1]) == 0.0
    assert plain.ndcg([4, 1, 2, 3]) == pytest.approx((1 / math.log2(4) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    assert score(["a", "a", "b"], {"b": 1}) == pytest.approx(1 / math.log2(3))
    assert score([], {"b": 1}) == 0.0
    (tmp_path / "p.jsonl").write_text(json.dumps({**PLAIN, "grades": [1]}))
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
    assert all(row["apart"] < 0.03 for row in found.values())  # int8 against fp32, activations of deviation 1
    if "native" in found:
        assert found["onnx"]["apart"] < 1e-3
    stored = RunRecord.load(tmp_path / "run.json").figures
    assert {figure.row for figure in stored} == set(found)
    assert all(len(figure.rounds) == 2 and min(figure.rounds) > 0 for figure in stored)


def test_parts_make_up_the_whole(tmp_path: Path, measured_here: Callable[[str], None]) -> None:
    measured_here("overhead")
    packed = synth("tiny-bert", tmp_path / "pack")
    options = [
        "--model", str(packed.path), "--candidates", "5", "--tokens", "40", "--memory", "4GB", "--rows", "400", "--dim",
        "16", "--nprobe", "3", "--rounds", "2", "--threads", "1", "--work-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    report = json.loads(output_of(overhead, *options, "--store", str(tmp_path / "run.json")))
    arms = report["rerank"]["arms"]
    for name, rounds in arms.items():
        assert len(rounds) == 2
        for row in rounds:
            assert row["seconds"] == pytest.approx(row["core"] + sum(row[part] for part in PARTS))
            assert min(row["core"], *(row[part] for part in PARTS)) > 0, name
    assert sum(row["layers"] for row in arms["null"]) < sum(row["layers"] for row in arms["layers"])
    assert all(min(seconds) > 0 for seconds in report["search"].values())
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == {"layers", "null", "cpu"}


@pytest.mark.usefixtures("tiny_settings")
def test_questions_are_asked_in_their_conversation(tmp_path: Path) -> None:
    dates = ("1:56 pm on 8 May, 2023", "12:05 am on 9 June, 2023")
    turns = [(f"c{n // 4}/{n}", dates[n % 2], f"Anna: mill number {n} grinds {n * 7} bags of flour.") for n in range(8)]
    asked = {f"c{n}/q": f"what does mill number {4 * n} grind?" for n in range(2)}
    folder = judged_set(tmp_path / "set", turns, asked, {"test": [("c0/q", "c0/0", 1), ("c1/q", "c1/4", 1)]})
    assert [len(said) for said in turns_of(load(folder)).values()] == [2, 2, 2, 2]
    task = {"data": str(folder), "questions": 0, "memory": 10**11}
    report = ask_evidence(task)
    assert (report["turns"], report["questions"]) == (8, 2)
    assert list(report["systems"]) == ["bm25, text alone", "fused", "bm25", "vectors", "fused + rerank"]
    for name, row in report["systems"].items():
        assert row["recall"] == 1.0, "ten results hold all four turns of a conversation"
        assert ("seconds" in row) == name.startswith("fused")
    assert report["systems"]["bm25"]["ndcg"] == 1.0, "one turn has the number"
    assert ask_evidence(task | {"questions": 1})["questions"] == 1


def test_the_same_candidates_are_ranked_within_a_limit(tmp_path: Path) -> None:
    options = [
        "--shape", "tiny-bert", "--candidates", "5", "--tokens", "40", "-k", "3", "--threads", "1", "--rounds", "1",
        "--systems", "streamed,onnxruntime", "--work-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    report = json.loads(output_of(rerank_memory, *options, "--memory", "1GB", "--store", str(tmp_path / "run.json")))
    for name, row in report["systems"].items():
        assert row["agreed"] == 1.0, name
        assert len(row["best"]) == 3
        assert row["peak_resident"] > 1 << 20
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == set(report["systems"])
    with pytest.raises(EdgeError):
        output_of(rerank_memory, *options, "--memory", "1MB")
