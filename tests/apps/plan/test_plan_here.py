"""`edge profile`, `edge plan here` and the benchmark `plan` over a small collection with tiny random models."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from bench.plan import Comparison, plan, summarised
from naive.program import output_of, settings_of, write_tiny_models

from edge.apps.cli import edge
from edge.apps.plan.profile import ServerPlan
from edge.config import Config
from edge.errors import CapabilityError, EdgeError
from edge.planner.measured import Prediction, Reading

SERVER = find_spec("starlette") is not None
"""Whether the server's libraries are there."""


@pytest.fixture(scope="module")
def first_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an indexed collection."""
    folder = tmp_path_factory.mktemp("home")
    write_tiny_models(folder / "models")
    documents = folder / "documents"
    documents.mkdir()
    for number in range(12):
        (documents / f"{number}.md").write_text(f"The river number {number} floods in spring.\n\nBread needs time.\n")
    (folder / "questions.txt").write_text("when does the river flood\nwhat needs time\n")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        run("index", "documents", "-c", "store")
    return folder


@pytest.fixture(scope="module")
def measured(first_home: Path) -> dict[str, Any]:
    """The profile of the collection, which several processes measure."""
    with pytest.MonkeyPatch.context() as patch:
        enter(first_home, patch)
        return shown("profile", "-c", "store", "--questions", "questions.txt", "--memory", "9GB", "--rounds", "1",
                     *(("--answers", "2") if SERVER else ()))  # fmt: skip


@pytest.fixture
def home(first_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    enter(first_home, monkeypatch)
    return first_home


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes a folder the home and the working folder of this process."""
    for name, value in settings_of(folder, EDGE_THREADS="1", EDGE_MEMORY="10GB").items():
        patch.setenv(name, value)
    patch.chdir(folder)


def run(*arguments: str) -> str:
    return output_of(edge, *arguments)


def shown(*arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return result


def test_what_was_not_profiled_cannot_be_planned(home: Path) -> None:
    run("index", "documents", "-c", "other")
    with pytest.raises(EdgeError, match="run `edge profile"):
        run("plan", "here", "-c", "other")


def test_what_was_profiled_is_planned_and_the_settings_are_taken(home: Path, measured: dict[str, Any]) -> None:
    assert measured["origin"] == "measured"
    assert [(one["answers"], one["generation"]) for one in measured["company"]] == [
        (1, "exact"), (2, "exact"), (2, "shared"),
    ] * SERVER  # fmt: skip
    assert all(one["ratio"] > 0 < one["nbytes"] <= 2e9 for one in measured["company"])
    assert {row["depth"] for row in measured["readings"]} == {0, 8, 30, 60}
    assert all(row["search"] > 0 and 0 < row["nbytes"] <= 2e9 for row in measured["readings"])
    assert all((row["rerank"] > 0) == (row["depth"] > 0) for row in measured["readings"])

    plan = shown("plan", "here", "-c", "store", "--settings", "config.toml")
    assert plan["chosen"] in plan["choices"]
    assert plan["chosen"]["depth"] == max(choice["depth"] for choice in plan["choices"])
    settings = home / "config.toml"
    assert Config.load(project=settings, environment={}).memory == 9_000_000_000
    assert plan["command"] in settings.read_text()
    words = plan["command"].split()[1:]
    assert run(*words, "-c", "store", "when does the river flood")

    text = run("plan", "here", "-c", "store")
    assert plan["command"] in text
    assert sum(line.startswith("*") for line in text.splitlines()) == 1
    quick = shown("plan", "here", "-c", "store", "--within", str(min(c["seconds"] for c in plan["choices"])))
    assert quick["chosen"]["seconds"] == min(c["seconds"] for c in plan["choices"])
    for arguments in (("--within", "1e-9"), ("--memory", "10MB")):
        with pytest.raises(EdgeError, match="no measured choice fits"):
            run("plan", "here", "-c", "store", *arguments)


def test_a_server_without_its_libraries_is_refused_before_anything_is_measured(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.apps.serve.limits.LIBRARIES", ("no_such_library",))
    monkeypatch.setattr("edge.apps.plan.machine.run_worker", None)
    with pytest.raises(CapabilityError, match=r"edge-rag\[serve\]"):
        run("profile", "-c", "store", "--questions", "questions.txt", "--answers", "2")


@pytest.mark.skipif(not SERVER, reason="needs Starlette")
def test_a_server_is_planned_for_a_rate_and_runs_the_plan(home: Path, measured: dict[str, Any]) -> None:
    with pytest.raises(EdgeError, match="no measured schedule keeps up"):
        run("plan", "serve", "-c", "store", "--rate", "1e6", "--within", "9")
    with pytest.raises(EdgeError, match="comes after"):
        run("plan", "serve", "-c", "store", "--rate", "1e-3", "--within", "1e-9")
    planned = shown("plan", "serve", "-c", "store", "--rate", "1e-3", "--within", "60", "-o", "plan.json")
    deepest = max(row["depth"] for row in measured["readings"])
    assert planned["serve"].pop("answers") in (1, 2)
    assert planned["serve"] == {
        "memory": 9_000_000_000, "generation": "exact", "passages": 8, "rerank": deepest > 0, "llm": "",
    }  # fmt: skip
    assert json.loads((home / "plan.json").read_text())["serve"].items() > planned["serve"].items()
    assert "At 0.001 questions a second" in run("plan", "serve", "-c", "store", "--rate", "1e-3", "--within", "60")
    plan = ServerPlan.read(home / "plan.json")
    assert plan.options == {"passages": 8, "rerank": True}
    for text in ("{", "[]", '{"serve": 3}', json.dumps({"serve": planned["serve"]})):
        (home / "other.json").write_text(text)
        with pytest.raises(EdgeError, match="is no plan"):
            ServerPlan.read(home / "other.json")
    with pytest.raises(EdgeError, match="cannot be read"):
        ServerPlan.read(home / "none.json")


@pytest.mark.usefixtures("home", "measured")
def test_the_bench_runs_each_schedule_in_its_own_process() -> None:
    options = ("-c", "store", "--questions", "questions.txt")
    report = json.loads(output_of(plan, *options, "--depths", "0,12", "--rounds", "2", "--json"))
    assert [row["depth"] for row in report["schedules"]] == [0, 12]
    assert all(row["measured_s"] > 0 and 0 < row["measured_nbytes"] <= 9e9 for row in report["schedules"])
    assert report["time_worst"] >= report["time_median"]
    with pytest.raises(click.BadParameter, match="whole numbers"):
        output_of(plan, *options, "--depths", "deep")
    with pytest.raises(EdgeError, match="run edge profile first"):
        output_of(plan, *options, "--limits", "1GB")


@pytest.mark.parametrize(("text", "reason"), [(b"one\n", "at least 2"), (b"\xff\xfe", "not valid UTF-8")])
def test_questions_that_cannot_be_used_are_refused(home: Path, text: bytes, reason: str) -> None:
    (home / "few.txt").write_bytes(text)
    with pytest.raises(EdgeError, match=reason):
        run("profile", "-c", "store", "--questions", "few.txt")


def test_the_summary_is_of_the_errors_and_of_the_choice_of_a_limit() -> None:
    def row(limit: int, depth: int, predicted: float, seconds: float) -> Comparison:
        measured = Reading(depth, 4, 9, 1.0, 0.0, 0.0, 0.0, seconds, 0.0, 0.0, 100)
        return Comparison(Prediction(limit, depth, 4, {"all": predicted}, 110.0), measured, 2 / seconds)

    rows = [row(1, 0, 1.0, 1.0), row(2, 0, 1.1, 0.8), row(1, 9, 2.0, 1.6)]
    assert rows[0].written_seconds == 1.0
    found = summarised(rows)
    assert found["time_median"] == pytest.approx(0.25)
    assert found["time_worst"] == pytest.approx(0.375)
    assert found["rate_worst"] == pytest.approx(0.6364, abs=1e-4), "0.9091 answers a second predicted, and 2.5 measured"
    assert found["memory_median"] == pytest.approx(0.1)
    assert found["choice_over_best"] == pytest.approx(1.25)  # the plan prefers limit 1, which took 1.0 and not 0.8
