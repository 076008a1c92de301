"""Measures answers under several schedules on this machine, each visit of a schedule in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.apps.bench.process import measure
from edge.config import Config
from edge.planner.measured import Reading

_WORKER = "edge.apps.plan.visit_worker"

STAGES = ("embed", "search", "rerank", "write")

ROUNDS = 3
"""Number of visits of each schedule."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A memory limit in bytes, a reranking depth (0 without reranking) and a number of passages."""

    memory: int
    depth: int
    passages: int


@dataclass(frozen=True, slots=True)
class Visit:
    """The answers of one process.

    Attributes:
        seconds: of each answer.
        stages: seconds of each answer, by stage.
        per_s: answers per second over all of them.
        nbytes: high-water mark of the process's anonymous memory.
        troubles: sentences about the collection that its user should read.
    """

    seconds: Sequence[float]
    stages: Mapping[str, Sequence[float]]
    per_s: float
    nbytes: int
    troubles: Sequence[str]


def visited(
    place: Path,
    config: Config,
    questions: Sequence[str],
    schedules: Sequence[Schedule],
    *,
    pipeline: str,
    max_tokens: int,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[Schedule, list[Visit]]:
    """Visits every schedule `rounds` times, in turns, so that a change of the machine's speed meets all of them.

    The first question warms up and is not counted. KV states of documents are not kept, so that every question costs as
    much as with passages that were never read before.

    Args:
        say: called with a message before each visit.

    Raises:
        EdgeError: a process failed, for instance because its limit is too small.
    """
    common = {
        "collection": str(place), "questions": list(questions), "pipeline": pipeline, "max_tokens": max_tokens,
        "flags": {
            name: getattr(config, name) for name in ("embedder", "reranker", "llm", "runtime", "threads", "models_dir")
        },
    }  # fmt: skip
    found: dict[Schedule, list[Visit]] = {schedule: [] for schedule in schedules}
    for number in range(rounds):
        for place_in_round, schedule in enumerate(schedules[:: 1 if number % 2 == 0 else -1], 1):
            say(f"round {number + 1} of {rounds}, schedule {place_in_round} of {len(schedules)}")
            task = {
                **common, "memory": schedule.memory, "depth": schedule.depth, "passages": schedule.passages,
                "name": f"depth {schedule.depth} and {schedule.passages} passages",
            }  # fmt: skip
            report = measure(_WORKER, task, threads=config.threads or 2)
            found[schedule].append(_visit(report))
    return found


def reading(schedule: Schedule, visits: Sequence[Visit]) -> Reading:
    """The times of a schedule: of each question the median over the visits, and their mean over the questions."""

    def typical(values: Sequence[Sequence[float]]) -> float:
        return float(np.mean(np.median(np.asarray(values, np.float64), axis=0)))

    stages = {name: typical([visit.stages[name] for visit in visits]) for name in STAGES}
    other = max(0.0, typical([visit.seconds for visit in visits]) - sum(stages.values()))
    nbytes = float(np.median([visit.nbytes for visit in visits]))
    return Reading(schedule.depth, schedule.passages, **stages, other=other, nbytes=nbytes)


def _visit(report: Mapping[str, Any]) -> Visit:
    return Visit(report["seconds"], report["stages"], report["per_s"], report["peak_resident"], report["troubles"])
