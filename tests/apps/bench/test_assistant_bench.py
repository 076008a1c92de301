"""`edge bench assistant` and `edge bench floor` on a judged set of a few paragraphs, with tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.apps.bench.assistant import _hideable, assistant
from edge.apps.bench.floor import floor
from edge.apps.bench.pipelining import pipelining
from edge.apps.bench.pipelining_worker import intervals
from edge.apps.bench.rag_traces import PIPELINES, cases, texts_of, write_recorded, write_trace
from edge.apps.bench.random_gguf import RandomModel
from edge.errors import InputError
from edge.models.synth import synth
from edge.models.training.corpora import load

ARTICLES = {
    "Ombra": [
        "The river Ombra floods its valley in spring. It carries ice until May. Fishermen like the lower river best.",
        "The Ombra has its source in the glacier of Kell. Its water is green there. Nobody knows how old the ice is.",
        "The bridge over the Ombra was built in 1821. Anna Berg drew its plans. It has seven arches of grey stone.",
    ],
    "Kell": [
        "The town of Kell lies at the foot of a glacier. Its mill grinds flour for the valley. The mill is very old.",
        "Anna Berg was born in Kell in the year 1790. She built bridges and mills. Her house is a museum today.",
    ],
}
ASKED = {
    "Ombra#0": [("When does the Ombra flood?", "in spring"), ("Until when is there ice?", "until May")],
    "Ombra#1": [("Where is the source?", "glacier of Kell"), ("What colour is the water?", "green")],
    "Ombra#2": [("When was the bridge built?", "1821"), ("How many arches are there?", "seven")],
    "Kell#0": [("Where does Kell lie?", "foot of a glacier"), ("What does the mill grind?", "flour")],
    "Kell#1": [("When was Anna Berg born?", "1790"), ("What is her house today?", "a museum")],
}


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """The set in BEIR layout; every question is a test question."""
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": f"{title}#{i}", "title": title, "text": text}
        for title, texts in ARTICLES.items()
        for i, text in enumerate(texts)
    ]
    questions = [(f"{p}/{i}", p, q, a) for p, asked in ASKED.items() for i, (q, a) in enumerate(asked)]
    lines = {
        "corpus.jsonl": corpus,
        "queries.jsonl": [{"_id": number, "text": text} for number, _, text, _ in questions],
    }
    for name, rows in lines.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "answers.json").write_text(json.dumps({n: [a] for n, _, _, a in questions}), encoding="utf-8")
    rows = [f"{number}\t{paragraph}\t1" for number, paragraph, _, _ in questions]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]), encoding="utf-8")
    return folder


@pytest.fixture
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth("tiny-bert-embedder", tmp_path / "models" / "tiny-embedder").close()
    synth("tiny-bert", tmp_path / "models" / "tiny").close()
    for name, value in {
        "MODELS_DIR": str(tmp_path / "models"), "SCRATCH_DIR": str(tmp_path / "scratch"), "EMBEDDER": "tiny-embedder",
        "RERANKER": "tiny", "THREADS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"EDGE_{name}", value)


def test_what_can_be_hidden_is_what_fits_into_the_windows() -> None:
    """A first search that follows nothing, one behind a long window, and one behind a window of 0.5 s."""
    stalls = [0.3, 0.2, 0.6]
    waited, hidden = _hideable(stalls, [None, 1.0, 0.5])
    assert (waited, hidden) == (pytest.approx(0.8), pytest.approx(0.7))
    assert _hideable(stalls, [None] * 3) == (0.0, 0.0)


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


def test_all_pipelines_find_the_same_with_and_without_lookahead(
    judged: Path, tmp_path: Path, tiny_models: None
) -> None:
    arguments = [
        "--data", str(judged), "--rows", "400", "--list-rows", "25", "--questions", "2", "--warmup", "1",
        "--bandwidth", "10MB", "--decode", "20000", "--prefill", "1000000", "--memory-share", "0.6",
        "--work-dir", str(tmp_path / "bench"), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(assistant, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert [row["pipeline"] for row in report["pipelines"]] == list(PIPELINES)
    assert report["conditions"]["rows"] == 400
    assert report["conditions"]["lists"] > 4
    for row in report["pipelines"]:
        assert row["identical"], row
        assert row["hit_rate"][0] == 0, "nothing stays in memory"
        assert all(0 <= rate <= 1 for rate in row["hit_rate"])
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


def test_a_model_is_recorded_and_replayed(judged: Path, tmp_path: Path, tiny_models: None) -> None:
    pytest.importorskip("llama_cpp")
    model = RandomModel(vocabulary=1000, context=2048, hidden=16, layers=1, heads=2, ffn=32).write(tmp_path / "t.gguf")
    arguments = [
        "--data", str(judged), "--rows", "400", "--list-rows", "25", "--questions", "1", "--warmup", "1",
        "--bandwidth", "10MB", "--decode", "20000", "--prefill", "1000000", "--memory-share", "0.6", "--json",
        "--work-dir", str(tmp_path / "bench"), "--traces", str(tmp_path / "traces"), "--pipelines", "hyde,flare",
    ]  # fmt: skip
    done = CliRunner().invoke(assistant, [*arguments, "--record", str(model)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["flare.jsonl", "hyde.jsonl"]
    again = CliRunner().invoke(assistant, arguments, catch_exceptions=False)
    for report in (done, again):
        rows = json.loads(report.stdout.splitlines()[-1])["pipelines"]
        assert [row["identical"] for row in rows] == [True, True]
    refused = CliRunner().invoke(assistant, [*arguments[:-6], "--record", str(model)])
    assert refused.exit_code == 2


def test_retrieval_is_hidden_behind_what_is_written(judged: Path, tiny_models: None, tmp_path: Path) -> None:
    arguments = [
        "--data", str(judged), "--rows", "400", "--list-rows", "8", "--interval", "8", "--texts", "2", "--warmup", "1",
        "--decode", "100", "--bandwidth", "100kB", "--memory-share", "4", "--work-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(pipelining, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    arms = json.loads(done.stdout.splitlines()[-1])["arms"]
    assert list(arms) == ["waits", "pipelined", "adaptive"]
    searches = {arm: row["searches"] for arm, row in arms.items()}
    assert searches["waits"] == searches["pipelined"] == searches["adaptive"] >= 4
    assert arms["waits"]["kept"] == 1.0
    assert arms["waits"]["stall_s"] == pytest.approx(arms["waits"]["search_s"])
    for arm in ("pipelined", "adaptive"):
        assert 0 <= arms[arm]["stall_s"] < arms[arm]["seconds"]
        assert 0 < arms[arm]["kept"] <= 1
    assert arms["waits"]["over_slack"] is None
    assert 0 <= arms["adaptive"]["over_slack"] <= 1


def test_the_floor_is_measured_for_what_is_there_and_what_is_not(judged: Path, tiny_models: None) -> None:
    arguments = ["--data", str(judged), "--data", str(judged), "--questions", "3", "--pool", "5", "--json"]
    done = CliRunner().invoke(floor, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    rows = report["sets"]["judged"]
    assert report["default"] in [row["floor"] for row in rows]
    assert [row["refused"] for row in rows] == sorted(row["refused"] for row in rows)
    for name in ("answered_without_document", "answered_foreign"):
        assert [row[name] for row in rows] == sorted((row[name] for row in rows), reverse=True)
    one = CliRunner().invoke(floor, ["--data", str(judged)])
    assert "two judged sets" in str(one.exception)


def test_a_query_is_what_was_last_written() -> None:
    text = "".join(chr(97 + i % 26) for i in range(700))
    found = intervals(text, 32)
    assert [len(query) for query in found] == [128, 256, 256, 256, 256]
    assert all(text[: 128 * (i + 1)].endswith(query) for i, query in enumerate(found))
