"""Measures answers under several schedules on this machine, each visit of a schedule in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.bench.process import measure
from edge.config import Config
from edge.planner.measured import Reading

Floats = npt.NDArray[np.float64]

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
        written: whether each answer was written; the others were refused.
        per_s: answers per second over all of them.
        nbytes: high-water mark of the process's anonymous memory.
        troubles: sentences about the collection that its user should read.
    """

    seconds: Sequence[float]
    stages: Mapping[str, Sequence[float]]
    written: Sequence[bool]
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

    def typical(values: Sequence[Sequence[float]]) -> Floats:
        return np.asarray(np.median(np.asarray(values, np.float64), axis=0))

    stages = {name: typical([visit.stages[name] for visit in visits]) for name in STAGES}
    other = float(np.mean(typical([visit.seconds for visit in visits]) - sum(stages.values())))
    # What is refused does not depend on the time, so every visit has the same answers.
    written, writing = np.asarray(visits[0].written, np.bool_), stages.pop("write")
    return Reading(
        schedule.depth,
        schedule.passages,
        len(written),
        float(written.mean()),
        **{name: float(seconds.mean()) for name, seconds in stages.items()},
        write=float(writing[written].mean()) if written.any() else 0.0,
        draft=0.0 if written.all() else float(writing[~written].mean()),
        other=max(0.0, other),
        nbytes=float(np.median([visit.nbytes for visit in visits])),
    )


def _visit(report: Mapping[str, Any]) -> Visit:
    return Visit(
        report["seconds"], report["stages"], report["written"], report["per_s"], report["peak_resident"],
        report["troubles"],
    )  # fmt: skip
