"""`assistant` on a judged set of a few paragraphs, with tiny random models."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from making.random_gguf import RandomModel
from making.recording import Speed
from making.replay import ReplayGenerator
from naive.program import output_of

from bench.assistant import _hideable, assistant
from bench.pipelining import SleepingWriter, pipelining
from bench.rag_traces import PIPELINES, SHIPPED, ComputedReplay, cases, write_recorded, write_trace
from bench.run_record import RunRecord
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.models.training.corpora import load
from edge.runtimes.generation.base import Message, Sampling


def test_what_can_be_hidden_is_what_fits_into_the_windows() -> None:
    """A first search that follows nothing, one behind a long window, and one behind a window of 0.5 s."""
    pairs = [(0.3, 0.0), (0.2, 1.0), (0.6, 0.5)]
    assert _hideable([{"stall": stall, "window": window} for stall, window in pairs]) == pytest.approx(0.7)
    assert _hideable([]) == 0.0


def texts_of(trace: Path) -> list[str]:
    records = map(json.loads, trace.read_text("utf-8").splitlines()[1:])
    return ["".join(text for text, _ in record["pieces"]) for record in records]


def test_traces_are_made_of_what_is_known_about_a_question(judged: Path, tmp_path: Path) -> None:
    case = next(c for c in cases(load(judged)) if c.question == "When was the bridge built?")
    assert case.sentence == "The bridge over the Ombra was built in 1821."
    assert case.beside == ("How many arches are there?",)
    assert len(case.near) == 3
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, "hyde", [case], prefill=1e6, decode=1e6)
    passage, answer = texts_of(trace)
    assert passage == f"The bridge over the Ombra was built in seven. {case.around[0]} {case.around[1]}"
    assert answer == case.sentence
    write_trace(trace, "flare", [case], prefill=1e6, decode=1e6)
    doubted = json.loads(trace.read_text(encoding="utf-8").splitlines()[1])["pieces"]
    assert "".join(text for text, logprob in doubted if logprob < -1) == " 1821."


SMALL = ["--questions", "1", "--warmup", "1", "--bandwidth", "10MB", "--memory-share", "0.6"]


def test_all_pipelines_find_the_same_with_and_without_lookahead(replaying: list[str], tmp_path: Path) -> None:
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


def test_a_recorded_trace_is_cut_to_the_questions_asked(judged: Path, tmp_path: Path) -> None:
    first, second, *_ = cases(load(judged))
    header = {"format": "edge-replay/1", "name": "model"}
    lines = [
        header,
        *(
            {"for": case.id, "text": case.question, "letters": [], "prompt_tokens": 1}
            for case in (first, second, first)
        ),
    ]
    recorded, cut = tmp_path / "recorded.jsonl", tmp_path / "cut.jsonl"
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_recorded(cut, recorded, [second, first])
    kept = [json.loads(line) for line in cut.read_text(encoding="utf-8").splitlines()]
    assert kept[0] == header
    assert [line["for"] for line in kept[1:]] == [second.id, first.id, first.id]
    with pytest.raises(InputError, match="has no answers to"):
        write_recorded(cut, recorded, cases(load(judged)))
    with pytest.raises(InputError, match="cannot be read"):
        write_recorded(cut, tmp_path / "none.jsonl", [first])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_shipped_traces_are_whole(pipeline: str) -> None:
    """Every pipeline was recorded for the same 16 questions, in the same order, and can be replayed."""
    path = SHIPPED / f"{pipeline}.jsonl"
    asked = [json.loads(line)["for"] for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    first = [json.loads(line)["for"] for line in (SHIPPED / "hyde.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert list(dict.fromkeys(asked)) == list(dict.fromkeys(first))
    assert len(set(asked)) == 16
    replay = ReplayGenerator(path, speed=Speed(1e12, 1e12))
    for _ in asked:
        pieces = list(replay.stream([Message("user", "?")], Sampling(max_tokens=1000)))
        assert all(piece.logprob is not None for piece in pieces) or pipeline != "flare"


def test_traces_of_ones_own_or_those_that_come_with_the_program(replaying: list[str], tmp_path: Path) -> None:
    refused = CliRunner().invoke(assistant, [*replaying, "--recorded", "--traces", str(tmp_path)])
    assert refused.exit_code == 2
    assert "leave --traces out" in refused.output


def test_a_model_computes_while_texts_are_replayed(judged: Path, replaying: list[str], tmp_path: Path) -> None:
    """The same texts and results as with a generator that waits, and as many tokens are computed as were recorded."""
    pytest.importorskip("llama_cpp")
    options = [*SMALL, "--pipelines", "hyde,flare", "--compute", "tiny"]
    report = json.loads(output_of(assistant, *replaying, *options))
    assert "random model tiny" in report["conditions"]["pace"]
    assert [row["identical"] for row in report["pipelines"]] == [True, True]
    trace = tmp_path / "computed.jsonl"
    write_trace(trace, "hyde", cases(load(judged))[:1], prefill=1, decode=1)
    replay = ComputedReplay(trace, tmp_path / "bench" / "random-tiny.gguf", MemoryBudget(1 << 40, part=True), threads=1)
    record = replay._turns[0]
    pieces = list(replay.stream([Message("user", "?")], Sampling(max_tokens=1000)))
    assert pieces == list(record.pieces)
    assert replay._context.length == record.prompt_tokens + len(pieces)
    cancel = threading.Event()
    cancel.set()
    assert list(replay.stream([Message("user", "?")], Sampling(max_tokens=1000), cancel=cancel)) == []


def test_a_model_is_recorded_and_replayed(replaying: list[str], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model = RandomModel(vocabulary=1000, context=2048, hidden=16, layers=1, heads=2, ffn=32).write(tmp_path / "t.gguf")
    replaying = replaying[: replaying.index("--store")]  # two different commands
    arguments = [*replaying, *SMALL, "--traces", str(tmp_path / "traces"), "--pipelines", "hyde,flare"]
    done = output_of(assistant, *arguments, "--record", str(model))
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["flare.jsonl", "hyde.jsonl"]
    for shown in (done, output_of(assistant, *arguments)):
        assert [row["identical"] for row in json.loads(shown)["pipelines"]] == [True, True]
    refused = CliRunner().invoke(assistant, [*replaying, *SMALL, "--record", str(model)])
    assert refused.exit_code == 2


def test_retrieval_is_hidden_behind_what_is_written(replaying: list[str], tmp_path: Path) -> None:
    at = replaying.index("--prefill")  # no prompt is read here
    options = [
        "--list-rows",
        "8",
        "--interval",
        "8",
        "--texts",
        "2",
        "--warmup",
        "1",
        "--decode",
        "100",
        "--bandwidth",
        "100kB",
        "--memory-share",
        "4",
    ]
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
