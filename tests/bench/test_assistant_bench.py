"""Benchmarks of answers: pipelines that are replayed, odds of answers, statements that end others, and arrivals."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of

from bench.assistant import assistant
from bench.command import bench
from bench.load import Sample, attained, drawn, summed
from bench.load import load as load_command
from bench.rag_traces import PIPELINES, cases, write_trace
from bench.rehearsal import rehearsal
from bench.rehearsal import row as row_of
from bench.run_record import RunRecord
from bench.supersession import complaints, counts, pairs
from edge.apps.collection.collection import Collection
from edge.models.registry import DEFAULT_RERANKER
from edge.models.training.corpora import load


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


def test_all_pipelines_find_the_same_with_and_without_lookahead(replaying: Callable[..., Any], tmp_path: Path) -> None:
    report = replaying(
        assistant, "--rows", "400", "--list-rows", "25", "--questions", "2", "--bandwidth", "10MB", "--memory-share",
        "0.6",
    )  # fmt: skip
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
        assert row["fetched_ahead"][:2] == [0, 0]
    # Whether a pipeline goes on looking ahead depends on the times that its first questions took.
    assert any(row["fetched_ahead"][2] for row in report["pipelines"]), "some pipeline looks ahead"


def test_searching_ahead_of_a_model_elsewhere_finds_the_same(replaying: Callable[..., Any]) -> None:
    found = replaying(rehearsal, "--questions", "1", "--memory", "10GB")["pipelines"]
    assert all(row["identical"] and min(row["first"].values()) > 0 for row in found.values())
    rows = [{"found": [], "text": "", "first": 3.0, "after": 0.4, "processor": 1.0}]
    faster = [rows[0] | {"after": 0.2, "text": "another"}]
    made = row_of({"search afterwards": [rows], "search ahead": [faster]})
    assert (made["gain"], made["identical"]) == (2.0, False)


@pytest.mark.usefixtures("tiny_settings")
def test_a_collection_is_asked_and_the_voices_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_RERANKER", DEFAULT_RERANKER)  # which has a reader
    (tmp_path / "river.md").write_text("# Ombra\n\nThe river Ombra floods in spring. Ice floats.\n")
    questions = [
        {"question": "When does the Ombra flood?", "answers": ["spring"]},
        {"question": "What floats?", "answers": ["ice"]},
        {"question": "Who painted the ceiling?", "answers": []},
        {"question": "Which colour has the Ombra?", "answers": [], "without": [str(tmp_path / "river.md")]},
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)))
    place = tmp_path / "collection"
    with Collection(place, memory="8GB") as collection:
        collection.index([tmp_path / "river.md"])
    report = json.loads(output_of(bench, "answer-odds", "--set", f"{place}={file}", "--memory", "8GB", "--json"))
    row = report["sets"]["own"]
    assert sum(row[cell] for cell in row if cell != "words") == len(questions)
    assert row["right"] + row["wrong"] + row["nearest right"] + row["nearest other"] + row["refused"] == 2


def test_endings_are_found_and_few_are_wrong() -> None:
    """Less is asked than is found today, so that a model that is fitted again passes."""
    told = [pair for one in complaints() for pair in one.pairs()]
    for judged, least in ((list(pairs()), 0.85), (told, 0.4)):
        for half, row in counts(judged).items():
            assert row["right_share"] >= least, half
            assert row["wrong_share"] <= 0.04, half


def test_arrivals_are_those_of_a_poisson_process() -> None:
    found = drawn(20.0, 200.0, {"ask": 3, "search": 1}, topics=4, seed=1)
    gaps = [b.at - a.at for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.1)
    assert sum(one.kind == "ask" for one in found) / len(found) == pytest.approx(0.75, abs=0.03)
    counts = [sum(one.topic == topic for one in found) / len(found) for topic in range(4)]
    assert counts == pytest.approx([share / (25 / 12) for share in (1, 1 / 2, 1 / 3, 1 / 4)], abs=0.03), "Zipf's law"
    assert found == drawn(20.0, 200.0, {"ask": 3, "search": 1}, topics=4, seed=1)


@pytest.mark.usefixtures("tiny_settings")
def test_servers_with_and_without_parts_are_asked_at_their_times(gguf: Callable[..., Path], tmp_path: Path) -> None:
    for extra in ("llama_cpp", "starlette", "uvicorn"):
        pytest.importorskip(extra)
    options = [
        "--model", str(gguf(context=4096)), "--rates", "4", "--seconds", "2", "--topics", "2", "--documents", "1",
        "--answer", "4", "--deadline", "100", "--memory", "1GB", "--system",
        "neither=@tree,queue", "--system", "edge=", "--work-dir", str(tmp_path / "work"), "--json",
    ]  # fmt: skip
    report = json.loads(output_of(load_command, *options))
    assert set(report["systems"]) == {"neither", "edge"}
    for loads in report["systems"].values():
        ((row,),) = loads.values()
        assert (row["within"], row["refused"], row["lost"]) == (1.0, 0.0, 0.0)
        assert row["requests_per_s"] > 0 < row["tokens_per_s"]
        assert row["peak"] > 1 << 20


def test_measures_of_known_samples() -> None:
    """A refused and a lost request have missed their deadline."""
    samples = [Sample(first=n / 10, whole=n / 10 + 0.9, pieces=10, status=200) for n in range(1, 21)]
    sums = summed([*samples, Sample(status=429), Sample(status=0)], 10.0, deadline=1.5)
    assert sums["first_p50"] == 1.0
    assert sums["first_p95"] == 1.9
    assert sums["token_p50"] == pytest.approx(0.1)
    assert (sums["within"], sums["refused"], sums["lost"]) == (15 / 22, 1 / 22, 1 / 22)
    assert (sums["requests_per_s"], sums["tokens_per_s"]) == (2.0, 20.0)


@pytest.mark.parametrize(
    ("kept", "rate"), [((1, 0.95, 0.9, 0.4), 3.0), ((1, 1, 0.8, 0), 2.5), ((0.8, 0.95, 1, 1), 0.0), ((1,) * 4, 4.0)]
)
def test_the_rate_up_to_which_the_deadline_is_kept(kept: tuple[float, ...], rate: float) -> None:
    assert attained([1, 2, 3, 4], kept) == pytest.approx(rate)
