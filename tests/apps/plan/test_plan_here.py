"""`edge profile` and `edge plan rag --on here` over a small collection with tiny random models."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of, settings_of, write_tiny_models

from edge.apps.cli import edge
from edge.apps.plan.here import Row, ServerPlan, best, without
from edge.apps.plan.profile import STAGES, Setting, Visit, manners, reading, visited
from edge.apps.plan.rag import GOALS
from edge.config import Config
from edge.errors import CapabilityError, EdgeError
from edge.planner.measured import BUSIEST, Company, MachineProfile, Manner, Reading

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
        return shown("profile", "-c", "store", "--questions", "questions.txt", "--memory", "9GB", "--rounds", "1")


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


def planned(*arguments: str) -> dict[str, Any]:
    return shown("plan", "rag", "plain", "--on", "here", "-c", "store", *arguments)


def test_what_was_not_profiled_cannot_be_planned(home: Path) -> None:
    run("index", "documents", "-c", "other")
    with pytest.raises(EdgeError, match="run `edge profile"):
        run("plan", "rag", "plain", "--on", "here", "-c", "other")
    with pytest.raises(EdgeError, match="was not profiled"):
        run("plan", "rag", "mine.json", "--on", "here")
    with pytest.raises(EdgeError, match="with --on here"):
        run("plan", "rag", "plain", "--rate", "1")
    with pytest.raises(EdgeError, match="this machine is one device"):
        run("plan", "rag", "plain", "--on", "here", "-c", "store", "--accelerators", "4")


def test_what_was_profiled_is_planned_and_written_for_a_server(home: Path, measured: dict[str, Any]) -> None:
    usual = asdict(Manner.of(Config.load()))
    assert measured["origin"] == "measured"
    assert [one["manner"] for one in measured["company"]] == [usual] * SERVER, "no language model: nothing to choose"
    assert all(one["ratio"] > 0 < one["nbytes"] <= 2e9 for one in measured["company"])
    assert [(row["depth"], row["passages"]) for row in measured["readings"]] == [(0, 2), (0, 6), (30, 2), (30, 6)]
    assert all(row["search"] > 0 and 0 < row["nbytes"] <= 2e9 for row in measured["readings"])
    assert all((row["rerank"] > 0) == (row["depth"] > 0) for row in measured["readings"])

    plan = planned("-o", "plan.json")
    assert plan["chosen"] in plan["plans"]
    assert (plan["chosen"]["depth"], plan["chosen"]["passages"]) == (30, 6)
    assert plan["naive"] == (plan["chosen"] if SERVER else None)
    text = run("plan", "rag", "plain", "--on", "here", "-c", "store")
    assert plan["sentence"] in text
    assert sum(line.startswith("*") for line in text.splitlines()) == 1
    quick = planned("--ttft", str(min(one["first_s"] for one in plan["plans"])))
    assert quick["chosen"]["first_s"] == min(one["first_s"] for one in plan["plans"])
    for arguments, reason in {("--ttft", "1e-9"): "comes after", ("--memory", "10MB"): "smallest limit"}.items():
        with pytest.raises(EdgeError, match=reason):
            planned(*arguments)

    written = ServerPlan.read(home / "plan.json")
    assert json.loads((home / "plan.json").read_text())["serve"] == plan["serve"]
    assert (written.memory, written.options) == (9_000_000_000, {"passages": 6, "rerank": True})
    for wrong in ("{", "[]", '{"serve": 3}', json.dumps({"serve": plan["serve"] | {"manner": {"answers": 1}}})):
        (home / "other.json").write_text(wrong)
        with pytest.raises(EdgeError, match="is no plan"):
            ServerPlan.read(home / "other.json")
    with pytest.raises(EdgeError, match="cannot be read"):
        ServerPlan.read(home / "none.json")


def test_a_server_is_planned_for_a_rate(home: Path, measured: dict[str, Any]) -> None:
    with pytest.raises(EdgeError, match="no measured schedule keeps up"):
        planned("--rate", "1e6")
    with pytest.raises(EdgeError, match="comes after"):
        planned("--rate", "1e-3", "--ttft", "1e-9")
    assert "at 0.001 questions a second" in planned("--rate", "1e-3", "--ttft", "60")["sentence"]


def test_without_a_servers_libraries_answers_alone_are_measured(
    home: Path, measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.apps.serve.limits.LIBRARIES", ("no_such_library",))
    with monkeypatch.context() as patch:
        patch.setattr("edge.apps.bench.worker.run_worker", None)
        with pytest.raises(CapabilityError, match=r"edge-rag\[serve\]"):
            run("profile", "-c", "store", "--questions", "questions.txt", "--answers", "2")
    monkeypatch.setenv("EDGE_THREADS", "2")
    found = shown("profile", "-c", "store", "--questions", "questions.txt", "--memory", "8GB", "--rounds", "1")
    assert found["company"] == []
    limits = {(one["memory"], one["manner"]["answers"]) for one in planned()["plans"]}
    assert (8_000_000_000, 1) in limits
    assert 9_000_000_000 in {memory for memory, _ in limits}, "profiles of other numbers of threads count, too"


def test_a_server_without_a_plan_is_one_of_the_manners_that_are_measured() -> None:
    config = Config(llm="model.gguf", threads=4)
    usual, *others = manners(config, [8])
    assert usual == Manner.of(config)
    assert {(one.answers, one.generation, one.states) for one in others} == {
        (8, "auto", "auto"), (1, "exact", "exact"), (1, "exact", "anywhere"), (4, "auto", "auto"),
    }  # fmt: skip
    assert [(one.threads, one.llm_threads) for one in others if one.llm_threads] == [(1, 3)]
    assert len(manners(Config(llm="model.gguf", threads=1), [])) == 3
    assert manners(Config(llm="http://127.0.0.1:1"), [8]) == [Manner.of(Config())]


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_is_worse_than_a_server_without_one(seed: int) -> None:
    """Every choice is tried: nothing that is soon enough, fits and gives as much has a higher rate."""
    draw = random.Random(seed)
    config = Config(llm="model.gguf", threads=2)
    readings = [
        Reading(limit, depth, passages, 20, draw.uniform(0.5, 1), 0.01, 0.02, depth / 100, draw.uniform(1, 3), 0.5, 0.0,
                1e8, draw.uniform(0.1, 1), 30)
        for limit in (300, 600) for depth in (0, 30) for passages in (2, 4)
    ]  # fmt: skip
    company = [
        Company(limit, manner, 4, draw.uniform(0.5, 1.1), draw.uniform(1, 4), 1e8)
        for limit in (300, 600) for manner in manners(config, [])
    ]  # fmt: skip
    rate, within = draw.choice([None, 0.3]), draw.choice([None, 4.0])
    rows = [Row.of(one, "plain", rate) for one in MachineProfile({}, readings, company).servings()]
    soon = [row for row in rows if row.outcome.ttft <= (within or 1e9)]
    if not soon:
        with pytest.raises(EdgeError, match=r"comes after|keeps up"):
            best(rows, list(GOALS.values()), within, None, config)
        return
    chosen = best(rows, list(GOALS.values()), within, None, config)
    assert chosen.quality == max(row.quality for row in soon)
    alike = [row for row in soon if row.quality == chosen.quality]
    top = max(alike, key=lambda row: row.outcome.throughput)
    naive = without(config, [row for row in alike if row.like(top)])
    near = naive is not None and naive.outcome.throughput >= top.outcome.throughput * 0.9
    assert chosen is (naive if near else top), "a plan brings more than measurements differ by"
    assert all(row.queue is None or row.queue.busy <= BUSIEST for row in soon)
    usual = Manner.of(config)
    naive = [row for row in alike if row.serving.company.manner == usual]
    assert without(config, alike) is (naive[0] if naive else None)
    assert without(Config(llm="model.gguf", threads=1), alike) is (naive[0] if naive else None)
    assert without(config, [row for row in alike if row not in naive]) is None
    first = best(rows, [GOALS["ttft"]], within, None, config)
    assert first.outcome.ttft <= 1.1 * min(row.outcome.ttft for row in alike)


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
    return {
        "seconds": seconds, "first": seconds, "stages": stages, "tokens": [9] * len(seconds), "written": written,
        "per_s": 1.0, "peak_resident": nbytes,
    }  # fmt: skip


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
            "first": [1.0], "tokens": [9], "troubles": [],
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
