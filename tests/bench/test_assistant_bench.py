"""`assistant` on a judged set of a few paragraphs, with tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from naive.program import output_of

from bench.assistant import _hideable, assistant
from bench.pipelining import SleepingWriter, pipelining
from bench.rag_traces import PIPELINES, cases, write_trace
from bench.run_record import RunRecord
from edge.models.training.corpora import load


def test_what_can_be_hidden_is_what_fits_into_the_windows() -> None:
    """A first search that follows nothing, one behind a long window, and one behind a window of 0.5 s."""
    pairs = [(0.3, 0.0), (0.2, 1.0), (0.6, 0.5)]
    assert _hideable([{"stall": stall, "window": window} for stall, window in pairs]) == pytest.approx(0.7)
    assert _hideable([]) == 0.0


def texts_of(trace: Path) -> list[str]:
    records = map(json.loads, trace.read_text("utf-8").splitlines())
    return ["".join(text for text, _ in record["pieces"]) for record in records]


def test_traces_are_made_of_what_is_known_about_a_question(judged: Path, tmp_path: Path) -> None:
    case = next(c for c in cases(load(judged)) if c.question == "When was the bridge built?")
    assert case.sentence == "The bridge over the Ombra was built in 1821."
    assert case.beside == ("How many arches are there?",)
    assert len(case.near) == 3
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, "hyde", [case])
    passage, answer = texts_of(trace)
    assert passage == f"The bridge over the Ombra was built in seven. {case.around[0]} {case.around[1]}"
    assert answer == case.sentence
    write_trace(trace, "flare", [case])
    doubted = json.loads(trace.read_text(encoding="utf-8").splitlines()[0])["pieces"]
    assert "".join(text for text, logprob in doubted if logprob < -1) == " 1821."


SMALL = ["--questions", "1", "--warmup", "1", "--bandwidth", "10MB", "--memory-share", "0.6"]


def test_all_pipelines_find_the_same_with_and_without_lookahead(
    replaying: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.assistant.measure", lambda work, task, threads: work(task))  # saves 18 processes
    report = json.loads(output_of(assistant, *replaying, *SMALL, "--questions", "2"))
    assert [row["pipeline"] for row in report["pipelines"]] == list(PIPELINES)
    stored = {figure.key: figure.median for figure in RunRecord.load(tmp_path / "run.json").figures}
    for row in report["pipelines"]:
        key = ("time of a question", row["pipeline"], "lookahead")
        assert stored[key] == pytest.approx(row["seconds"][2], rel=1e-4)
    assert report["conditions"]["rows"] == 400
    assert report["conditions"]["lists"] > 4
    for row in report["pipelines"]:
        assert row["identical"], row
        assert row["hit_rate"][0] == 0, "nothing stays in memory"
        assert all(0 <= rate <= 1 for rate in row["hit_rate"])
        on_demand, ahead = row["searches"]["on demand"], row["searches"]["lookahead"]
        assert [place["questions"] for place in on_demand] == [place["questions"] for place in ahead]
        assert sum(place["ahead"] for place in on_demand) == 0
    # Whether a pipeline goes on looking ahead depends on the times that its first questions took.
    assert any(row["coverage"] is not None for row in report["pipelines"]), "some pipeline looks ahead"


def test_retrieval_is_hidden_behind_what_is_written(replaying: list[str], tmp_path: Path) -> None:
    at = replaying.index("--prefill")  # no prompt is read here
    options = [
        "--list-rows", "8", "--interval", "8", "--texts", "2", "--warmup", "1", "--decode", "100",
        "--bandwidth", "100kB", "--memory-share", "4",
    ]  # fmt: skip
    arms = json.loads(output_of(pipelining, *replaying[:at], *replaying[at + 2 :], *options))["arms"]
    arms = {row["arm"]: row for row in arms.values()}
    assert list(arms) == ["waits", "pipelined", "adaptive"]
    assert len({figure.row for figure in RunRecord.load(tmp_path / "run.json").figures}) == 3
    searches = {arm: row["searches"] for arm, row in arms.items()}
    assert searches["waits"] == searches["pipelined"] == searches["adaptive"] >= 4
    assert arms["waits"]["kept"] == 1.0
    assert arms["waits"]["stall_s"] == pytest.approx(arms["waits"]["search_s"])
    for arm in ("pipelined", "adaptive"):
        assert 0 <= arms[arm]["stall_s"] < arms[arm]["seconds"]
        assert 0 < arms[arm]["kept"] <= 1
    assert arms["waits"]["over_slack"] is None
    assert 0 <= arms["adaptive"]["over_slack"] <= 1


def test_a_query_is_what_was_last_written() -> None:
    text = "".join(chr(97 + i % 26) for i in range(700))
    found = SleepingWriter(text, 32, 100.0).queries
    assert [len(query) for query in found] == [128, 256, 256, 256, 256]
    assert all(text[: 128 * (i + 1)].endswith(query) for i, query in enumerate(found))
