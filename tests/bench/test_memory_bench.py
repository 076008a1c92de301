"""`memory` and `rerank-memory` with tiny models: what they report of a few texts, and that limits are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from naive.program import output_of

from bench.memory import ask_evidence, look_up_actions, turns_of
from bench.rerank_memory import rerank_memory
from bench.run_record import RunRecord
from edge.errors import EdgeError, InputError
from edge.models.training.corpora import load


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    """Two conversations of four turns, with a question about each."""
    folder = tmp_path / "conversations"
    (folder / "qrels").mkdir(parents=True)
    dates = ("1:56 pm on 8 May, 2023", "12:05 am on 9 June, 2023")
    turns = [
        {"_id": f"c{n // 4}/{n}", "title": dates[n % 2], "text": f"Anna: mill number {n} grinds {n * 7} bags of flour."}
        for n in range(8)
    ]
    asked = [{"_id": f"c{n}/q", "text": f"what does mill number {4 * n} grind?"} for n in range(2)]
    for name, rows in {"corpus.jsonl": turns, "queries.jsonl": asked}.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nc0/q\tc0/0\t1\nc1/q\tc1/4\t1\n")
    return folder


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


@pytest.mark.usefixtures("tiny_settings")
def test_actions_are_looked_up_with_and_without_reranking() -> None:
    report = look_up_actions({"intents": 6, "memory": 10**11, "most_wrong": 0.05})
    assert (report["stored"], report["asked"] > 12) == (6, True)
    for name in ("reranked", "vectors alone"):
        assert 0 <= report[name]["found"] <= 1
        assert report[name]["lookup_ms"] > 0


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
