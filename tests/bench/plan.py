"""`plan`: compares the predictions of `edge plan here` with measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, benchmark, numbers, stated
from edge.apps.collection.registry import locate
from edge.apps.options import configure
from edge.apps.plan.profile import (
    Questions,
    Setting,
    conditions,
    profile_path,
    questions_options,
    reading,
    rounds_option,
    say,
    visited,
)
from edge.config import format_size, parse_size
from edge.errors import InputError
from edge.planner.measured import MachineProfile, Reading


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prediction and its measurement: the typical times over the questions, and answers per second, one after the
    other."""

    predicted: Reading
    measured: Reading
    per_s: float

    @property
    def written_seconds(self) -> float:
        """The measured seconds of a written answer; 0 if none was written."""
        return self.measured.seconds if self.measured.written else 0.0

    @property
    def written_error(self) -> float:
        """The predicted time of a written answer divided by the measured time, minus 1; 0 if none was written."""
        return self.predicted.seconds / self.written_seconds - 1 if self.measured.written else 0.0

    @property
    def time_error(self) -> float:
        """The predicted mean time over all questions divided by the measured time, minus 1."""
        return self.predicted.mean_seconds / self.measured.mean_seconds - 1

    @property
    def rate_error(self) -> float:
        """The predicted rate of answers, one after the other, divided by the measured rate, minus 1."""
        return 1 / self.predicted.mean_seconds / self.per_s - 1

    @property
    def memory_error(self) -> float:
        """The predicted memory divided by the measured memory, minus 1."""
        return self.predicted.nbytes / self.measured.nbytes - 1


@benchmark
@questions_options("Other questions than those that were profiled, one per line.", "As it was profiled with.")
@rounds_option
def plan(
    *,
    questions: Questions,
    depths: Annotated[Sequence[int], numbers(0), "Reranking depths; 0 is without."] = (0, 30),
    passages: Annotated[Sequence[int], numbers(0), "Numbers of passages."] = (4,),
    limits: Annotated[str, "Memory limits such as 300MB,1GB; all that were profiled if not given."] = "",
    rounds: int,
    output: Output,
) -> None:
    """Run schedules on this machine, and compare their time and memory with the plan.

    A schedule is a memory limit, a reranking depth and a number of passages. Each runs in a process of its own.
    """
    config = configure(llm=questions.llm)
    place = locate(questions.collection)
    current = conditions(config, questions.pipeline)
    known = MachineProfile.load(profile_path(place, current), current)
    if limits:
        wanted = {parse_size(text) for text in limits.split(",")}
        known.limits = {limit: profile for limit, profile in known.limits.items() if limit in wanted}
    found = [p for p in known.readings if p.depth in depths and p.passages in passages]
    if not found:
        raise InputError("nothing was profiled for these limits and depths: run edge profile first")
    schedules = [Setting(p.limit, p.depth, p.passages) for p in found]
    visits = visited(
        place, config, questions.read(), schedules,
        pipeline=questions.pipeline, max_tokens=questions.max_tokens, rounds=rounds, say=say,
    )  # fmt: skip
    rows: list[Comparison] = []
    for schedule, predicted in zip(schedules, found, strict=True):
        measured = reading(schedule, visits[schedule])
        per_s = statistics.median(visit.per_s for visit in visits[schedule])
        rows.append(Comparison(predicted, measured, per_s))
    summary = summarised(rows)
    result = {"conditions": dict(known.conditions), "schedules": [_json(r) for r in rows], **summary}
    output.put(result, figures(rows, summary), stated(result["conditions"]))


def figures(rows: Sequence[Comparison], summary: dict[str, float]) -> Iterator[Figure]:
    named = {
        f"{format_size(r.predicted.limit)}, {r.predicted.depth} judged, {r.predicted.passages} passages": _json(r)
        for r in rows
    }
    columns = {
        "predicted_s": neither("predicted mean", "s"), "measured_s": lower("measured mean", "s"),
        "predicted_written_s": neither("predicted, written answer", "s"),
        "measured_written_s": lower("measured, written answer", "s"),
        "predicted_written": neither("predicted share written"), "measured_written": neither("measured share written"),
        "measured_per_s": higher("measured rate", "/s"),
        "predicted_nbytes": neither("predicted memory", "B"), "measured_nbytes": lower("measured memory", "B"),
    }  # fmt: skip
    yield from tabulate(named, columns, "schedules")
    errors = {key: neither(key.replace("_", ", "), "%") for key in summary if key != "choice_over_best"}
    errors["choice_over_best"] = neither("the plan's choice over the best one")
    yield from tabulate({"all schedules": summary}, errors, "errors of the plan")


def summarised(rows: Sequence[Comparison]) -> dict[str, float]:
    """The errors over all schedules, and the loss from the plan's choice of a limit. The loss is the largest ratio of
    the chosen schedule's measured time to the best one's, over groups of schedules that differ only in their limit."""
    errors = {
        "written": [abs(r.written_error) for r in rows],
        "time": [abs(r.time_error) for r in rows],
        "rate": [abs(r.rate_error) for r in rows],
        "memory": [abs(r.memory_error) for r in rows],
    }
    ratios = []
    for key in {(r.predicted.depth, r.predicted.passages) for r in rows}:
        group = [r for r in rows if (r.predicted.depth, r.predicted.passages) == key]
        planned = min(group, key=lambda r: r.predicted.mean_seconds)
        ratios.append(planned.measured.mean_seconds / min(r.measured.mean_seconds for r in group))
    medians = {f"{name}_median": statistics.median(values) for name, values in errors.items()}
    worst = {f"{name}_worst": max(values) for name, values in errors.items()}
    return {**medians, **worst, "choice_over_best": max(ratios)}


def _json(r: Comparison) -> dict[str, Any]:
    p = r.predicted
    return {
        "memory": p.limit, "depth": p.depth, "passages": p.passages,
        "predicted_s": p.mean_seconds, "measured_s": r.measured.mean_seconds,
        "predicted_written_s": p.seconds, "measured_written_s": r.written_seconds,
        "predicted_written": p.written, "measured_written": r.measured.written,
        "measured_per_s": r.per_s, "predicted_nbytes": p.nbytes, "measured_nbytes": r.measured.nbytes,
    }  # fmt: skip
