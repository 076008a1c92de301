"""`edge profile` and `edge plan here` over a small collection with tiny random models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of, settings_of, write_tiny_models

from edge.apps.cli import edge
from edge.apps.plan.profile import STAGES, ServerPlan, Setting, Visit, reading, visited
from edge.config import Config
from edge.errors import CapabilityError, EdgeError

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
    assert {row["depth"] for row in measured["readings"]} == {0, 30}
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
    monkeypatch.setattr("edge.apps.bench.worker.run_worker", None)
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


@pytest.mark.parametrize(("text", "reason"), [(b"one\n", "at least 2"), (b"\xff\xfe", "not valid UTF-8")])
def test_questions_that_cannot_be_used_are_refused(home: Path, text: bytes, reason: str) -> None:
    (home / "few.txt").write_bytes(text)
    with pytest.raises(EdgeError, match=reason):
        run("profile", "-c", "store", "--questions", "few.txt")


ONE, TWO, THREE = (Setting(10**9, depth, 4) for depth in (0, 8, 30))


def visit(*seconds: float, search: float = 0.0, nbytes: int = 100) -> Visit:
    stages = {name: [0.0] * len(seconds) for name in (*STAGES, "start")} | {"search": [search] * len(seconds)}
    return report(seconds, stages, [True] * len(seconds), nbytes)


def report(seconds: Sequence[float], stages: dict[str, list[float]], written: list[bool], nbytes: int = 100) -> Visit:
    return {"seconds": seconds, "stages": stages, "written": written, "per_s": 1.0, "peak_resident": nbytes}


def test_a_disturbed_answer_does_not_count() -> None:
    """The second question took 9 s in one visit, and the third visit was slow at the first one."""
    found = reading(TWO, [visit(1.0, 9.0, search=0.5), visit(1.2, 2.0, search=0.5), visit(7.0, 2.2, nbytes=400)])
    assert found.search == pytest.approx(0.5)
    assert found.mean_seconds == pytest.approx((1.2 + 2.2) / 2)
    assert found.other == pytest.approx(1.7 - 0.5)
    assert (found.depth, found.passages, found.nbytes) == (8, 4, 100)


def test_refused_questions_do_not_count_as_writing() -> None:
    stages = {name: [0.0] * 4 for name in (*STAGES, "start")} | {
        "write": [3.0, 0.5, 0.5, 0.5],
        "rerank": [0.2] * 4,
        "start": [1.0, 0.5, 0.5, 0.5],
    }
    found = reading(TWO, [report([3.3, 0.8, 0.8, 0.8], stages, [True, False, False, False])])
    assert (found.questions, found.written, found.write, found.draft, found.start) == (4, 0.25, 3.0, 0.5, 1.0)
    assert found.mean_seconds == pytest.approx((3.3 + 3 * 0.8) / 4)
    nothing = reading(TWO, [report([0.8] * 2, {name: [0.1] * 2 for name in (*STAGES, "start")}, [False] * 2)])
    assert (nothing.written, nothing.write) == (0, 0)


def test_schedules_are_visited_in_turns_and_in_alternating_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[dict[str, Any]] = []

    def measured(worker: str, task: dict[str, Any], *, threads: int) -> dict[str, Any]:
        tasks.append(task)
        stages = {name: [0.1] for name in (*STAGES, "start")}
        return {
            "seconds": [1.0], "stages": stages, "written": [True], "per_s": 1.0, "peak_resident": len(tasks),
            "troubles": [],
        }  # fmt: skip

    monkeypatch.setattr("edge.apps.bench.worker.run_worker", measured)
    said: list[str] = []
    config = Config(threads=1, reranker="a", embedder="b", llm="c", runtime="numpy")
    found = visited(
        Path("place"), config, ["warm", "asked"], [ONE, TWO, THREE], pipeline="plain", max_tokens=9, rounds=3,
        say=said.append,
    )  # fmt: skip
    assert [task["depth"] for task in tasks] == [0, 8, 30, 30, 8, 0, 0, 8, 30]
    assert [each["peak_resident"] for each in found[THREE]] == [3, 4, 9]
    assert len(said) == len(set(said)) == 9
    flags = tasks[0]["flags"]
    assert (flags["reranker"], flags["embedder"], flags["llm"], flags["runtime"]) == ("a", "b", "c", "numpy")
    assert tasks[0]["memory"] == 10**9
