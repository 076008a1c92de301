"""Visits of schedules: their order, and the result of several visits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.apps.plan import machine
from edge.apps.plan.machine import Setting, Visit, reading, visited
from edge.config import Config

ONE, TWO, THREE = (Setting(10**9, depth, 4) for depth in (0, 8, 30))


def visit(*seconds: float, search: float = 0.0, nbytes: int = 100) -> Visit:
    stages = {name: [0.0] * len(seconds) for name in (*machine.STAGES, "start")} | {"search": [search] * len(seconds)}
    return Visit(seconds, stages, [True] * len(seconds), 1.0, nbytes, ())


def test_a_disturbed_answer_does_not_count() -> None:
    """The second question took 9 s in one visit, and the third visit was slow at the first one."""
    found = reading(TWO, [visit(1.0, 9.0, search=0.5), visit(1.2, 2.0, search=0.5), visit(7.0, 2.2, nbytes=400)])
    assert found.search == pytest.approx(0.5)
    assert found.mean_seconds == pytest.approx((1.2 + 2.2) / 2)
    assert found.other == pytest.approx(1.7 - 0.5)
    assert (found.depth, found.passages, found.nbytes) == (8, 4, 100)


def test_refused_questions_do_not_count_as_writing() -> None:
    stages = {name: [0.0] * 4 for name in (*machine.STAGES, "start")} | {
        "write": [3.0, 0.5, 0.5, 0.5],
        "rerank": [0.2] * 4,
        "start": [1.0, 0.5, 0.5, 0.5],
    }
    found = reading(TWO, [Visit([3.3, 0.8, 0.8, 0.8], stages, [True, False, False, False], 1.0, 100, ())])
    assert (found.questions, found.written, found.write, found.draft, found.start) == (4, 0.25, 3.0, 0.5, 1.0)
    assert found.mean_seconds == pytest.approx((3.3 + 3 * 0.8) / 4)
    nothing = reading(
        TWO, [Visit([0.8] * 2, {name: [0.1] * 2 for name in (*machine.STAGES, "start")}, [False] * 2, 1.0, 100, ())]
    )
    assert (nothing.written, nothing.write) == (0, 0)


def test_schedules_are_visited_in_turns_and_in_alternating_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[dict[str, Any]] = []

    def measured(worker: str, task: dict[str, Any], *, threads: int) -> dict[str, Any]:
        tasks.append(task)
        stages = {name: [0.1] for name in (*machine.STAGES, "start")}
        return {
            "seconds": [1.0],
            "stages": stages,
            "written": [True],
            "per_s": 1.0,
            "peak_resident": len(tasks),
            "troubles": [],
        }

    monkeypatch.setattr(machine, "run_worker", measured)
    said: list[str] = []
    config = Config(threads=1, reranker="a", embedder="b", llm="c", runtime="numpy")
    found = visited(
        Path("place"), config, ["warm", "asked"], [ONE, TWO, THREE], pipeline="plain", max_tokens=9, rounds=3,
        say=said.append,
    )  # fmt: skip
    assert [task["depth"] for task in tasks] == [0, 8, 30, 30, 8, 0, 0, 8, 30]
    assert [each.nbytes for each in found[THREE]] == [3, 4, 9]
    assert len(said) == len(set(said)) == 9
    flags = tasks[0]["flags"]
    assert (flags["reranker"], flags["embedder"], flags["llm"], flags["runtime"]) == ("a", "b", "c", "numpy")
    assert tasks[0]["memory"] == 10**9
