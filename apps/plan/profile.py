"""The profile of this machine for a collection: answers are measured under several schedules, each visit of one in a
process of its own (`edge profile`). `edge plan here` and `edge plan serve` plan with it."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import psutil

from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.bench import worker
from edge.apps.collection.registry import locate
from edge.apps.options import (
    FiniteRange,
    OutputFile,
    Setup,
    collection_option,
    configure,
    gathered,
    json_option,
    setup_options,
)
from edge.apps.verbs.requests import AskOptions
from edge.config import Config, counted, format_duration, format_size, parse_size
from edge.errors import InputError
from edge.files.input_file import read_small, read_text
from edge.files.output_file import make_folder, open_output
from edge.files.sealed import digest
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.planner.measured import (
    Company,
    MachineProfile,
    Reading,
    Serving,
    best_serving,
    servings,
    unbeaten_choices,
)
from edge.text.control_characters import escaped

Floats = npt.NDArray[np.float64]

_WORKER = "edge.apps.plan.profile"

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


Visit = Mapping[str, Any]
"""The report of `work`: seconds of each answer, whole and by stage (`start`: of `write` before the first text), whether
it was written, answers per second, the peak of anonymous memory, and troubles of the collection."""


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
                **common, **asdict(schedule), "name": f"depth {schedule.depth} and {schedule.passages} passages"
            }  # fmt: skip
            found[schedule].append(worker.run_worker(_WORKER, task, threads=config.threads or 2))
    return found


def reading(schedule: Setting, visits: Sequence[Visit]) -> Reading:
    """Of each question the median over the visits, and their mean over the questions."""

    def typical(values: Sequence[Sequence[float]]) -> Floats:
        return np.asarray(np.median(np.asarray(values, np.float64), axis=0))

    stages = {name: typical([visit["stages"][name] for visit in visits]) for name in STAGES}
    start = typical([visit["stages"]["start"] for visit in visits])
    other = float(np.mean(typical([visit["seconds"] for visit in visits]) - sum(stages.values())))
    # Refusals do not depend on the time, so every visit has the same answers.
    written, writing = np.asarray(visits[0]["written"], np.bool_), stages.pop("write")
    return Reading(
        schedule.memory,
        schedule.depth,
        schedule.passages,
        len(written),
        float(written.mean()),
        **{name: float(seconds.mean()) for name, seconds in stages.items()},
        write=float(writing[written].mean()) if written.any() else 0.0,
        draft=0.0 if written.all() else float(writing[~written].mean()),
        other=max(0.0, other),
        nbytes=peak(visits),
        start=float(start[written].mean()) if written.any() else 0.0,
    )


def peak(visits: Sequence[Visit]) -> float:
    return float(np.median([visit["peak_resident"] for visit in visits]))


DEPTHS: Sequence[int] = (0, AskOptions().pool)
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
    questions: Questions,
    *,
    rounds: int,
    answers: Sequence[int],
    say: Callable[[str], None],
) -> tuple[list[Reading], list[Company]]:
    """Measures answers with each number of passages, reranked or not, and the process as a server with so many
    `answers` at a time, exact and shared."""
    from edge.apps.serve.limits import load_libraries

    if answers:
        load_libraries()  # its lack is told before anything is measured
    schedules = [Setting(config.memory, depth, passages) for depth, passages in product(DEPTHS, PASSAGES)]
    alone = Setting(config.memory, DEPTHS[-1], PASSAGES[1])
    kinds = [(1, "exact"), *product(answers, ("exact", "shared"))] if answers else []
    company = [replace(alone, answers=count, generation=kind, serving=True) for count, kind in kinds]
    found = visited(
        place, config, questions.read(), [*schedules, *company],
        pipeline=questions.pipeline, max_tokens=questions.max_tokens, rounds=rounds, say=say,
    )  # fmt: skip
    for trouble in found[schedules[0]][0]["troubles"]:
        click.echo(escaped(f"edge: {trouble}"), err=True)

    def pace(schedule: Setting) -> float:
        return float(np.median([visit["per_s"] for visit in found[schedule]]))

    return [reading(schedule, found[schedule]) for schedule in schedules], [
        Company(config.memory, one.answers, one.generation, pace(alone) / pace(one), peak(found[one]))
        for one in company
    ]


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


_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Questions:
    """One question per line. Without `llm` the configured model writes."""

    file: Path
    llm: str | None
    pipeline: str
    max_tokens: int
    collection: Path | None

    def read(self) -> list[str]:
        questions = [line.strip() for line in read_text(str(self.file)).splitlines() if line.strip()]
        if len(questions) < _FEWEST:
            raise InputError(f"{self.file} has {len(questions)} questions; at least {_FEWEST} are needed, one per line")
        return questions


questions_options = gathered(
    "questions",
    Questions,
    click.option(
        "--questions",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        help="File with questions such as yours, one per line; about twenty are enough. The first one warms up.",
    ),
    click.option("--llm", metavar="MODEL", help="As for `edge ask`; its writing is measured, too."),
    click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
    click.option(
        "--max-tokens",
        type=click.IntRange(1, 4096),
        default=64,
        show_default=True,
        help="Longest answer of a language model.",
    ),
    collection_option,
)


@click.command("profile")
@questions_options
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=ROUNDS,
    show_default=True,
    help="Visits of each schedule; each question counts with its median.",
)
@click.option(
    "--answers",
    type=click.IntRange(2, 32),
    multiple=True,
    help="Also measure so many answers at a time, for `edge plan serve`.",
)
@setup_options()
@json_option
def profile(questions: Questions, rounds: int, answers: tuple[int, ...], setup: Setup, as_json: bool) -> None:
    """Measure embedding, search, reranking and writing on this machine, for `edge plan here`.

    The questions are answered under the memory limit in force, reranked and not, with several numbers of passages.
    Each is visited in several rounds, in processes of their own. Run it once for each limit that you think of, when
    nothing else runs. The figures are kept beside the collection, for this machine and these models.
    """
    config = setup.config(llm=questions.llm)
    place = locate(questions.collection)
    current = conditions(config, questions.pipeline)
    path = profile_path(place, current)
    known = MachineProfile.load(path, current)
    readings, company = measure_limit(
        place, config, questions, rounds=rounds, answers=sorted(set(answers)),
        say=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    known.measured(readings, company)
    known.save(path)
    if as_json:
        click.echo(json.dumps({
            "limit": config.memory, "conditions": current, "origin": "measured",
            "readings": list(map(asdict, readings)), "company": list(map(asdict, company)),
        }))  # fmt: skip
        return
    click.echo("\n".join(table(readings)))
    for one in company:
        click.echo(
            f"{one.answers} answers at a time, {one.generation}: {one.ratio:.2f} of the time for each, "
            f"{format_size(int(one.nbytes))}"
        )
    click.echo(
        f"measured with {counted(readings[0].questions, 'question')} in {counted(rounds, 'round')} under "
        f"{format_size(config.memory)}; limits that are known: {len(known.limits)}",
        err=True,
    )


def table(readings: Sequence[Reading], best: Reading | None = None) -> Iterator[str]:
    """A line for each reading, with a star before the best one."""
    yield (
        f"  {'limit':>9}{'judged':>8}{'passages':>10}{'answer':>10}{'written':>9}{'peak':>10}   "
        "embed, search, rerank, write"
    )
    for p in readings:
        stages = ", ".join(format_duration(getattr(p, name)) for name in STAGES)
        yield (
            f"{'*' if p is best else ' '} {format_size(p.limit):>9}{p.depth:>8}{p.passages:>10}"
            f"{format_duration(p.seconds):>10}{p.written:>9.0%}{format_size(int(p.nbytes)):>10}   {stages}"
        )


@click.command("here")
@click.option("--within", type=FiniteRange(0, min_open=True), help="Longest time of a written answer, in seconds.")
@click.option("--memory", help="Most bytes that the process may hold, such as 300MB.")
@click.option("--llm", metavar="MODEL", help="As it was profiled with.")
@click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True)
@click.option("--settings", type=OutputFile(), help="Write the chosen settings here, as .edge/config.toml takes them.")
@collection_option
@json_option
def here(
    within: float | None,
    memory: str | None,
    llm: str | None,
    pipeline: str,
    settings: Path | None,
    collection: Path | None,
    as_json: bool,
) -> None:
    """Plan `edge ask` on this machine with the measurements of `edge profile`.

    Of the schedules within --within and --memory, those that judge most passages are preferred, then those that
    write from most, then the fastest.
    """
    config = configure(llm=llm)
    known = known_profile(config, pipeline, collection)
    found = unbeaten_choices(known.readings)
    best = chosen(found, within, None if memory is None else parse_size(memory))
    if settings is not None:
        with open_output(settings) as file:
            file.write(settings_text(best, pipeline, config.llm).encode())
    if as_json:
        click.echo(json.dumps({
            "origin": "predicted", "from": "measured", "conditions": dict(known.conditions),
            "choices": [row(p) for p in found], "chosen": row(best), "command": command(best, pipeline, config.llm),
        }))  # fmt: skip
        return
    click.echo("\n".join(table(found, best)))
    taken = of_stages(best)
    slowest = max(taken, key=lambda name: taken[name])
    click.echo(
        f"`{command(best, pipeline, config.llm)}` should take {format_duration(best.seconds)} and hold "
        f"{format_size(int(best.nbytes))} of {format_size(best.limit)}; most of the time goes into {slowest} "
        f"({taken[slowest] / best.seconds:.0%})."
    )
    if best.written < 1:
        click.echo(
            f"{best.written:.0%} of the profiled questions were answered. The others were refused, which takes less "
            f"time: on average {format_duration(best.mean_seconds)} per question."
        )


def known_profile(config: Config, pipeline: str, collection: Path | None) -> MachineProfile:
    current = conditions(config, pipeline)
    known = MachineProfile.load(profile_path(locate(collection), current), current)
    if not known.readings:
        raise InputError(
            "nothing was measured for this collection, pipeline and models on this machine: run "
            "`edge profile --questions FILE`, once for each memory limit that you think of"
        )
    return known


def chosen(found: list[Reading], within: float | None, memory: int | None) -> Reading:
    fitting = [
        p for p in found
        if (within is None or p.seconds <= within) and (memory is None or p.limit <= memory)
    ]  # fmt: skip
    if not fitting:
        fastest, smallest = min(p.seconds for p in found), min(p.limit for p in found)
        raise InputError(
            f"no measured choice fits: the fastest answer takes {format_duration(fastest)}, and the smallest limit "
            f"that was measured is {format_size(smallest, up=True)}"
        )
    return min(fitting, key=lambda p: (-p.depth, -p.passages, p.seconds, p.limit))


def command(p: Reading, pipeline: str, llm: str) -> str:
    model = f" --llm {llm}" if llm else ""
    rerank = "" if p.depth else " --no-rerank"
    chosen = "" if pipeline == "plain" else f" --pipeline {pipeline}"
    return f"edge ask --memory {p.limit} -n {p.passages}{rerank}{chosen}{model}"


def settings_text(p: Reading, pipeline: str, llm: str) -> str:
    """A comment gives the whole command, since some options have no setting."""
    return f"# {command(p, pipeline, llm)}\nmemory = {p.limit}\n"


def of_stages(p: Reading) -> dict[str, float]:
    return {name: getattr(p, name) for name in (*STAGES, "other")}


def row(p: Reading) -> dict[str, Any]:
    return {
        "memory": p.limit, "depth": p.depth, "passages": p.passages, "seconds": p.seconds, "written": p.written,
        "mean_seconds": p.mean_seconds, "nbytes": p.nbytes, "stages": of_stages(p),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A server's limit in bytes, answers at a time and their kind (see `edge.config.Config`), passages and reranking of
    questions that do not say, and the generator (empty for the best sentences)."""

    memory: int
    answers: int
    generation: str
    passages: int
    rerank: bool
    llm: str

    @classmethod
    def of(cls, serving: Serving, llm: str) -> ServerPlan:
        p, company = serving.reading, serving.company
        llm = str(Path(llm).absolute()) if llm and Path(llm).is_file() else llm
        return cls(p.limit, company.answers, company.generation, p.passages, p.depth > 0, llm)

    @classmethod
    def read(cls, path: Path) -> ServerPlan:
        try:
            values = json.loads(read_small(path))
            kinds = {"memory": int, "answers": int, "generation": str, "passages": int, "rerank": bool, "llm": str}
            right = all(type(values["serve"][name]) is kind for name, kind in kinds.items())
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            raise InputError(f"{path} is no plan of `edge plan serve`")
        return cls(**{one.name: values["serve"][one.name] for one in fields(cls)})

    @property
    def options(self) -> Mapping[str, Any]:
        return {"passages": self.passages, "rerank": self.rerank}


@click.command("serve")
@click.option("--rate", type=FiniteRange(0, min_open=True), required=True, help="Questions a second, on average.")
@click.option(
    "--within", type=FiniteRange(0, min_open=True), required=True, help="Seconds to the first text, on average."
)
@click.option("--memory", help="Most bytes that the server may hold, such as 600MB.")
@click.option("--llm", metavar="MODEL", help="As it was profiled with.")
@click.option("--output", "-o", type=OutputFile(), help="Write the plan here, for `edge serve --plan`.")
@collection_option
@json_option
def serve(
    rate: float,
    within: float,
    memory: str | None,
    llm: str | None,
    output: Path | None,
    collection: Path | None,
    as_json: bool,
) -> None:
    """Plan `edge serve` on this machine with the measurements of `edge profile --answers`.

    Of the schedules that keep up with --rate and show the first text --within so many seconds, those that judge most
    passages are preferred, then those that write from most, then exact answers, then the earliest first text.
    """
    config = configure(llm=llm)
    found = servings(known_profile(config, "plain", collection), rate)
    best = best_serving(found, within, None if memory is None else parse_size(memory))
    plan = ServerPlan.of(best, config.llm)
    row = {
        "serve": {one.name: getattr(plan, one.name) for one in fields(plan)},
        "predicted": {
            "rate": rate, "busy": best.busy, "first_s": best.first, "seconds": best.seconds, "nbytes": best.nbytes,
        },
    }  # fmt: skip
    if output is not None:
        with open_output(output) as file:
            file.write((json.dumps(row, indent=1) + "\n").encode())
    if as_json:
        click.echo(json.dumps(row))
        return
    judged = f"the best {best.reading.depth} judged" if plan.rerank else "not reranked"
    click.echo(
        f"{format_size(plan.memory)}, {counted(plan.answers, 'answer')} at a time ({plan.generation}), "
        f"{counted(plan.passages, 'passage')} ({judged})"
    )
    click.echo(
        f"At {rate:g} questions a second the first text should come after {format_duration(best.first)} and the whole "
        f"answer after {format_duration(best.seconds)}, on average. The server is at work for {best.busy:.0%} of the "
        f"time, and holds {format_size(int(best.nbytes))}."
    )


if __name__ == "__main__":
    worker.serve(work)
