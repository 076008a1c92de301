"""The profile of this machine for a collection: answers are measured under several schedules, each visit of one in a
process of its own."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import psutil

from edge.apps.bench.process import run_worker, serve
from edge.apps.verbs.requests import AskOptions
from edge.config import Config
from edge.files.output_file import make_folder
from edge.files.sealed import digest
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.planner.measured import Company, LimitProfile, Reading
from edge.text.control_characters import escaped

Floats = npt.NDArray[np.float64]

_WORKER = "edge.apps.plan.machine"

STAGES = ("embed", "search", "rerank", "write")

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """A memory limit in bytes, a reranking depth (0: without), a number of passages, the number and kind of answers at
    a time, and whether the process has a server's libraries and keeps the documents' KV states."""

    memory: int
    depth: int
    passages: int
    answers: int = 1
    generation: str = "exact"
    serving: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """The answers of one process: seconds of each, whole and by stage (`start`: of `write` before the first text),
    whether it was written, answers per second, the peak of anonymous memory, and troubles of the collection."""

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
    schedules: Sequence[Setting],
    *,
    pipeline: str,
    max_tokens: int,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[Setting, list[Visit]]:
    """Visits every schedule `rounds` times, in turns, so that a change of the machine's speed meets all. The first
    question warms up. KV states of earlier processes are not used, so that passages cost as much as new ones."""
    common = {
        "collection": str(place), "questions": list(questions), "pipeline": pipeline, "max_tokens": max_tokens,
        "flags": {
            name: getattr(config, name) for name in ("embedder", "reranker", "llm", "runtime", "threads", "models_dir")
        },
        "scratch": str(config.scratch_path),
    }  # fmt: skip
    found: dict[Setting, list[Visit]] = {schedule: [] for schedule in schedules}
    for number in range(rounds):
        for place_in_round, schedule in enumerate(schedules[:: 1 if number % 2 == 0 else -1], 1):
            say(f"round {number + 1} of {rounds}, schedule {place_in_round} of {len(schedules)}")
            task = {
                **common, "memory": schedule.memory, "depth": schedule.depth, "passages": schedule.passages,
                "answers": schedule.answers, "generation": schedule.generation, "serving": schedule.serving,
                "name": f"depth {schedule.depth} and {schedule.passages} passages",
            }  # fmt: skip
            report = run_worker(_WORKER, task, threads=config.threads or 2)
            found[schedule].append(Visit(
                report["seconds"], report["stages"], report["written"], report["per_s"], report["peak_resident"],
                report["troubles"],
            ))  # fmt: skip
    return found


def reading(schedule: Setting, visits: Sequence[Visit]) -> Reading:
    """Of each question the median over the visits, and their mean over the questions."""

    def typical(values: Sequence[Sequence[float]]) -> Floats:
        return np.asarray(np.median(np.asarray(values, np.float64), axis=0))

    stages = {name: typical([visit.stages[name] for visit in visits]) for name in STAGES}
    start = typical([visit.stages["start"] for visit in visits])
    other = float(np.mean(typical([visit.seconds for visit in visits]) - sum(stages.values())))
    # Refusals do not depend on the time, so every visit has the same answers.
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
        start=float(start[written].mean()) if written.any() else 0.0,
    )


DEPTHS: Sequence[int] = (0, 8, 30, 60)
"""0 means without reranking."""

PASSAGES: Sequence[int] = (2, 4, 8)

_FILE = "profile-{}.json"


def profile_path(collection: Path, conditions: Mapping[str, str]) -> Path:
    return collection / _FILE.format(digest(conditions)[:12])


def conditions(config: Config, pipeline: str) -> dict[str, str]:
    return {
        "pipeline": pipeline,
        "machine": f"{platform.machine()} {_processor()}, {psutil.cpu_count()} processors, "
        f"{psutil.virtual_memory().total >> 20} MiB, {platform.system()}",
        "embedder": config.embedder or DEFAULT_EMBEDDER,
        "reranker": config.reranker or DEFAULT_RERANKER,
        "llm": config.llm or "extractive",
        "runtime": config.runtime,
        "threads": str(config.threads),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def options_of(depth: int, passages: int, max_tokens: int) -> AskOptions:
    return AskOptions(
        passages=passages, pool=max(depth or AskOptions().pool, passages), rerank=depth > 0, max_tokens=max_tokens
    )


def measure_limit(
    place: Path,
    config: Config,
    questions: Sequence[str],
    *,
    pipeline: str,
    max_tokens: int,
    rounds: int,
    answers: Sequence[int],
    say: Callable[[str], None],
) -> LimitProfile:
    """Measures answers with each reranking depth; each number of passages without reranking and at the middle depth;
    and the process as a server with so many `answers` at a time, exact and shared."""
    from edge.apps.serve.limits import load_libraries

    if answers:
        load_libraries()  # its lack is told before anything is measured
    middle = DEPTHS[len(DEPTHS) // 2]
    schedules = [
        Setting(config.memory, depth, passages)
        for depth in DEPTHS
        for passages in (PASSAGES if depth in (0, middle) else PASSAGES[1:2])
    ]
    alone = Setting(config.memory, middle, PASSAGES[1])
    kinds = [(1, "exact"), *product(answers, ("exact", "shared"))] if answers else []
    company = [replace(alone, answers=count, generation=kind, serving=True) for count, kind in kinds]
    found = visited(
        place, config, questions, [*schedules, *company],
        pipeline=pipeline, max_tokens=max_tokens, rounds=rounds, say=say,
    )  # fmt: skip
    for trouble in found[schedules[0]][0].troubles:
        click.echo(escaped(f"edge: {trouble}"), err=True)

    def pace(schedule: Setting) -> float:
        return float(np.median([visit.per_s for visit in found[schedule]]))

    return LimitProfile(
        config.memory,
        [reading(schedule, found[schedule]) for schedule in schedules],
        [
            Company(
                schedule.answers, schedule.generation, pace(alone) / pace(schedule),
                float(np.median([visit.nbytes for visit in found[schedule]])),
            )
            for schedule in company
        ],
    )  # fmt: skip


def work(task: dict[str, Any]) -> dict[str, Any]:
    """The first question warms up and is not reported."""
    from edge.apps.assistant.assistant import Assistant
    from edge.apps.collection.collection import Collection
    from edge.apps.serve.limits import load_libraries

    if task["serving"]:
        load_libraries()
    company = {"answers": task["answers"], "generation": task["generation"]}
    options = options_of(task["depth"], task["passages"], task["max_tokens"])
    first, *others = task["questions"]
    with ExitStack() as stack:
        make_folder(Path(task["scratch"]))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=task["scratch"]))
        config = Config.load(flags={"memory": task["memory"], "scratch_dir": scratch, **company, **task["flags"]})
        collection = stack.enter_context(Collection(Path(task["collection"]), config=config, read_only=True))
        assistant = stack.enter_context(
            Assistant(collection, pipeline=task["pipeline"], options=options, kv_cache=task["serving"])
        )
        troubles = [str(trouble) for trouble in collection.health()]
        assistant.ask(first)
        started = time.perf_counter()
        with ThreadPoolExecutor(task["answers"]) as threads:
            answers = list(threads.map(assistant.ask, others))
        taken = time.perf_counter() - started
    stats = [answer.stats for answer in answers]
    return {
        "seconds": [each.seconds for each in stats],
        "stages": {
            "embed": [each.embed_s for each in stats], "search": [each.search_s for each in stats],
            "rerank": [each.rerank_s for each in stats], "write": [each.generate_s for each in stats],
            "start": [
                min(each.generate_s, max(0.0, (each.ttft_s or each.seconds) - (each.seconds - each.generate_s)))
                for each in stats
            ],
        },
        # A question is refused if no round of retrieval keeps a passage. Then no answer is written.
        "written": [not a.rounds or any(found.passages for found in a.rounds) for a in answers],
        "per_s": len(stats) / taken, "troubles": troubles,
    }  # fmt: skip


if __name__ == "__main__":
    serve(work)
