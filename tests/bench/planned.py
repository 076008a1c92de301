"""`planned`: runs schedules of `edge plan serve` under the loads that they are planned for, and compares."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import click
from naive.program import EDGE

from bench.figures import higher, lower, neither, tabulate
from bench.load import Arrival, Sample, opened
from bench.options import Output, Threads, benchmark, numbers, stated
from bench.process import processor, say
from bench.serve import running
from edge.apps.collection.registry import locate
from edge.apps.options import configure
from edge.apps.plan.machine import PASSAGES
from edge.apps.plan.profile import DEPTHS, Questions, ServerPlan, known_profile, questions_options
from edge.errors import EdgeError
from edge.planner.measured import MachineProfile, Serving

_TIMEOUT_S = 300.0

_MOST = 8
"""Schedules that are run, if the caller names none."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions of a load, in place of `bench.load.World`."""

    questions: Sequence[str]

    def request(self, one: Arrival, length: int) -> tuple[str, dict[str, Any]]:
        """The path and the body of a question, which the server answers as its plan says."""
        question = self.questions[one.number % len(self.questions)]
        return "/v1/ask", {"question": question, "llm": "llm", "stream": True, "max_tokens": length}


def schedules(known: MachineProfile, busy: Sequence[float]) -> list[Serving]:
    """Schedules of all numbers and kinds of answers that were measured, at these shares of the time at work. Depths and
    passages take turns."""
    found = []
    for limit in known.limits.values():
        choices = [one for one in known.choices(DEPTHS, PASSAGES) if one.limit == limit.limit]
        for number, (company, share) in enumerate(itertools.product(limit.company, busy)):
            one = Serving(choices[number % len(choices)], company, 1.0)
            found.append(Serving(one.prediction, company, share / one.service))
    return found


@benchmark
@questions_options("Other questions than those that were profiled, one per line.", "As it was profiled with.")
def planned(
    *,
    questions: Questions,
    busy: Annotated[str, "Shares of the time at work, with commas between them."] = "0.3,0.6",
    plans: Annotated[Sequence[int] | None, numbers(1), f"Numbers of the schedules; the first {_MOST}."] = None,
    requests: Annotated[int, "Questions of each load."] = 24,
    threads: Threads = 2,
    output: Output,
) -> None:
    """Run servers by their plans, under Poisson arrivals of questions, and compare rate, first text and memory.

    `edge profile --answers N` must have measured the collection before.
    """
    config = configure(llm=questions.llm)
    place = locate(questions.collection)
    asked = questions.read()
    try:
        shares = [float(part) for part in busy.split(",")]
    except ValueError:
        raise click.BadParameter("shares are numbers with commas between them") from None
    every = schedules(known_profile(config, questions.pipeline, questions.collection), shares)
    chosen = [number for number in plans or range(1, _MOST + 1) if number <= len(every)]
    rows: dict[str, dict[str, float]] = {}
    for number in chosen:
        serving = every[number - 1]
        plan = ServerPlan.of(serving, config.llm)
        judged = f"judging {serving.prediction.depth}" if plan.rerank else "not reranked"
        name = f"{number}: {plan.answers} {plan.generation}, {plan.passages} passages, {judged}, {serving.rate:.3f}/s"
        say(name)
        rows[name] = _run(serving, plan, place, asked, questions.max_tokens, requests, threads)
    columns = {
        "rate": higher("rate", "/s"), "planned_rate": neither("planned rate", "/s"),
        "first": lower("first text", "s"), "planned_first": neither("planned first text", "s"),
        "peak": lower("peak", "B"), "planned_peak": neither("planned peak", "B"),
        "answers": neither("answers"), "first_error": neither("error of the first text", "%"),
    }  # fmt: skip
    conditions = {
        "model": Path(config.llm).name, "requests": requests, "questions": len(asked), "threads": threads,
        "max_tokens": questions.max_tokens, "processor": processor(),
    }  # fmt: skip
    output.put({"conditions": conditions, "plans": rows}, tabulate(rows, columns), stated(conditions))


def _run(
    serving: Serving, plan: ServerPlan, place: Path, asked: Sequence[str], length: int, requests: int, threads: int
) -> dict[str, float]:
    source = random.Random(1)
    times = list(itertools.accumulate(source.expovariate(serving.rate) for _ in range(requests)))
    arrivals = [Arrival(at, "ask", 0, source.randrange(len(asked))) for at in times]
    # The plan is asked about the load that chance has drawn.
    serving = replace(serving, rate=requests / times[-1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps({"serve": {one.name: getattr(plan, one.name) for one in fields(plan)}}))
        command = [
            *EDGE, "serve", "--port", "{port}", "--threads", str(threads), "--plan", str(file), "-c", str(place),
            "--memory-path", "{folder}/memory",
        ]  # fmt: skip
        with running(command, "edge", path="/v1/models") as (port, watch):
            warm = opened(port, [Arrival(0.0, "ask", 0, 0)], Asking(asked), length, _TIMEOUT_S)
            if warm[0].status != 200:
                raise EdgeError(f"the server answered a question with {warm[0].status}")
            begun = time.perf_counter()
            samples = opened(port, arrivals, Asking(asked), length, _TIMEOUT_S)
            took = time.perf_counter() - begun
    return compared(serving, samples, took, watch.high_water)


def compared(serving: Serving, samples: Sequence[Sample], seconds: float, peak: int) -> dict[str, float]:
    """What was planned and what was measured. An answer without text was refused."""
    firsts = [one.first for one in samples if one.first is not None and one.pieces]
    first = statistics.mean(firsts) if firsts else 0.0
    return {
        "rate": sum(one.status == 200 for one in samples) / seconds, "planned_rate": serving.rate,
        "first": first, "planned_first": serving.first, "first_error": serving.first / first - 1 if first else 0.0,
        "peak": float(peak), "planned_peak": float(serving.nbytes), "answers": len(firsts),
        "failed": sum(one.status != 200 for one in samples),
    }  # fmt: skip
