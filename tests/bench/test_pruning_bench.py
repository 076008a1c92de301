"""`pruning`: every ranking of an application is compared with full depth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of, settings_of

from bench.pruning import Call, WatchedReranker, pruning, summary
from bench.run_record import RunRecord
from edge.errors import InputError

WORDS = ("river", "mill", "spring", "harbour", "lantern", "orchard")


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A judged set in BEIR's layout, whose ids name conversations."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        for number in range(48):
            text = f"The {WORDS[number % 6]} number {number} is near the {WORDS[number % 5]}."
            row = {"_id": f"c/{number}", "title": "1:56 pm on 8 May, 2023", "text": text}
            file.write(json.dumps(row) + "\n")
    queries = [{"_id": f"c/q{number}", "text": f"where is the {word}?"} for number, word in enumerate(WORDS)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    rows = "".join(f"{query['_id']}\tc/{number}\t1\n" for number, query in enumerate(queries))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


def test_rankings_are_compared_with_full_depth(tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tiny_models))
    docs = [f"The {word} is {number}" for number, word in enumerate(WORDS * 3)]
    with WatchedReranker("tiny", memory="40GB", threshold=0.0) as reranker:
        reranker.relevant = ["The mill is 1", "The  mill is\n7", "of another collection"]
        reranker.rank("where is the mill?", docs, 3)
        reranker.rank("where is the mill?", docs, len(docs))
        reranker.rank("where is the mill?", docs)
        (call,) = reranker.calls
    assert (call.wanted, call.candidates) == (3, 18)
    assert 0 < call.work < 1, "a threshold of 0 prunes"
    assert call.overlap in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)
    assert call.precision in (0, 0.5, 1)
    assert call.full_precision in (0, 0.5, 1)


def test_means_of_rankings() -> None:
    calls = [Call(5, 60, 0.5, 1.0, 1.0, 2.0, 0.5, 1.0), Call(5, 40, 0.7, 0.8, 2.0, 3.0, 0.0, 0.5)]
    assert summary([*calls, Call(5, 60, 0.6, 0.9, 3.0, 4.0)]) == {
        "rankings": 3, "results": 5, "candidates": 60, "work": pytest.approx(0.6), "overlap": pytest.approx(0.9),
        "seconds": 2.0, "full_seconds": 3.0, "time": pytest.approx(2 / 3), "precision": 0.25, "full_precision": 0.75,
    }  # fmt: skip
    with pytest.raises(InputError, match="nothing was ranked"):
        summary([])


def test_every_application_is_asked(judged: Path, tiny_models: Path, monkeypatch: Any, tmp_path: Path) -> None:
    for name, value in settings_of(tmp_path, EDGE_MODELS_DIR=str(tiny_models)).items():
        monkeypatch.setenv(name, value)
    arguments = [str(judged), "--conversations", str(judged), "--queries", "6", "--memory", "10GB", "--json"]
    arguments += ["--store", str(tmp_path / "run.json")]
    report = json.loads(output_of(pruning, *arguments))
    assert list(report) == ["search", "ask", "memory", "actions", "select"]
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == set(report)
    for name, row in report.items():
        assert row["results"] < row["candidates"], name
        assert row["work"] == row["overlap"] == 1.0, "a model that was not calibrated is never pruned"
        assert row["precision"] == row["full_precision"], f"{name}: the results are those of full depth"
        assert row["seconds"] > 0 < row["full_seconds"]
