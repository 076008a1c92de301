"""The profile of this machine for a collection: answers are measured under several schedules, each visit of one in a
process of its own (`edge profile`). `edge plan rag --on here` plans with it."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import psutil

from edge.apps.assistant.generator import picks_sentences
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.bench import worker
from edge.apps.collection.registry import locate
from edge.apps.options import Setup, collection_option, gathered, json_option, setup_options
from edge.apps.verbs.requests import AskOptions
from edge.config import Config, counted, format_duration, format_size
from edge.errors import CapabilityError, InputError
from edge.files.named_file import make_folder, read_text
from edge.files.sealed import digest
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.planner.measured import Company, MachineProfile, Manner, Reading
from edge.runtimes.base import physical_cores
from edge.text.control_characters import escaped

Floats = npt.NDArray[np.float64]

_WORKER = "edge.apps.plan.profile"

STAGES = ("embed", "search", "rerank", "write")

ROUNDS = 3


_ALONE = Manner(1, "exact", "exact")


@dataclass(frozen=True, slots=True)
class Setting:
    """A memory limit in bytes, a reranking depth (0: without), a number of passages, and the manner of answering.

    With `clients` the process works as a server, which keeps the documents' KV states, and so many always wait. Each
    question then comes twice, first without reranking: the second time most passages have been read, in another
    order."""

    memory: int
    depth: int
    passages: int
    manner: Manner = _ALONE
    clients: int = 0


Visit = Mapping[str, Any]
"""The report of `work`: seconds of each answer, whole, to its first text, and by stage (`start`: of `write` before the
first text), its tokens, whether it was written, answers per second, the peak of anonymous memory, and troubles of the
collection."""


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
            name: getattr(config, name)
            for name in ("embedder", "reranker", "llm", "runtime", "threads", "device", "device_memory", "models_dir")
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
        tokens=float(np.asarray(visits[0]["tokens"])[written].mean()) if written.any() else 1.0,
    )


def peak(visits: Sequence[Visit]) -> float:
    return float(np.median([visit["peak_resident"] for visit in visits]))


DEPTHS: Sequence[int] = (0, AskOptions().pool)
"""0 means without reranking."""

FEW = 2
"""Passages to write from, beside the usual number."""

PROFILES = "profile-*.json"


def profile_path(collection: Path, conditions: Mapping[str, str]) -> Path:
    return collection / PROFILES.replace("*", digest(conditions)[:12])


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
        "device": config.device,
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


def manners(config: Config, more: Sequence[int]) -> list[Manner]:
    """The manner of a server without a plan, and others that a plan may choose if a language model is in this
    process."""
    usual = Manner.of(config)
    if not writes(config.llm) or "://" in config.llm:
        return [usual]
    cores = config.threads or physical_cores()
    few = max(1, cores // 4)
    found = [
        usual,
        *(replace(usual, answers=count) for count in more),
        *(Manner(1, "exact", states, config.threads, device=config.device) for states in ("exact", "anywhere")),
        *([replace(usual, threads=few, llm_threads=cores - few)] if cores > 1 else []),
    ]
    return list(dict.fromkeys(found))


def writes(llm: str) -> bool:
    return not picks_sentences(llm)


def measure_limit(
    place: Path,
    config: Config,
    questions: Questions,
    *,
    rounds: int,
    answers: Sequence[int],
    say: Callable[[str], None],
) -> tuple[list[Reading], list[Company]]:
    """Measures answers with each number of passages, reranked or not, and the process as a server in each of its
    manners, also with so many `answers` at a time. Without a server's libraries the latter is left out."""
    from edge.apps.serve.limits import load_libraries

    usual, serves = AskOptions().given(writes=writes(config.llm)), manners(config, answers)
    try:
        load_libraries()
    except CapabilityError:
        if answers:
            raise  # before anything is measured
        serves = []
    schedules = [Setting(config.memory, depth, passages) for depth, passages in product(DEPTHS, (FEW, usual))]
    alone = [Setting(config.memory, depth, usual) for depth in DEPTHS]
    clients = max([config.answers, *answers])
    company = [replace(alone[-1], manner=manner, clients=clients) for manner in serves]
    found = visited(
        place, config, questions.read(), [*schedules, *company],
        pipeline=questions.pipeline, max_tokens=questions.max_tokens, rounds=rounds, say=say,
    )  # fmt: skip
    for trouble in found[schedules[0]][0]["troubles"]:
        click.echo(escaped(f"edge: {trouble}"), err=True)

    def mean(values: Callable[[Visit], float], *settings: Setting) -> float:
        return float(np.mean([np.median([values(visit) for visit in found[one]]) for one in settings]))

    def each(visit: Visit) -> float:
        return float(1 / visit["per_s"])

    def first(visit: Visit) -> float:
        return float(np.mean(visit["first"]))

    return [reading(schedule, found[schedule]) for schedule in schedules], [
        Company(
            config.memory, one.manner, clients, mean(each, one) / mean(each, *alone),
            mean(first, one) / mean(first, *alone), peak(found[one]),
        )
        for one in company
    ]  # fmt: skip


def work(task: dict[str, Any]) -> dict[str, Any]:
    """The first question warms up and is not reported."""
    from edge.apps.assistant.assistant import Assistant
    from edge.apps.assistant.generator import open_llm, retrieval_nbytes
    from edge.apps.collection.collection import Collection
    from edge.apps.serve.limits import load_libraries

    manner, serves = Manner(**task["manner"]), task["clients"] > 0
    if serves:
        load_libraries()
    options = options_of(task["depth"], task["passages"], task["max_tokens"])
    first, *others = task["questions"]
    asked = [(question, each) for each in [replace(options, rerank=False)] * serves + [options] for question in others]
    with ExitStack() as stack:
        make_folder(Path(task["scratch"]))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=task["scratch"]))
        given = {"memory": task["memory"], "scratch_dir": scratch}
        config = Config.load(flags=task["flags"] | {k: v for k, v in asdict(manner).items() if v} | given)
        collection = stack.enter_context(Collection(Path(task["collection"]), config=config, read_only=True))
        llm = None
        if serves and writes(config.llm):
            llm = open_llm(
                config.llm, collection.budget, config, beside=retrieval_nbytes(collection, serving=True), kv_cache=True,
                serving=True, trace=collection.trace,
            )  # fmt: skip
            stack.callback(llm.close)
        assistant = stack.enter_context(
            Assistant(collection, llm=llm, pipeline=task["pipeline"], options=options, kv_cache=False)
        )
        troubles = [str(trouble) for trouble in collection.health()]
        assistant.ask(first)
        started = time.perf_counter()
        with ThreadPoolExecutor(max(1, task["clients"])) as threads:
            answers = list(threads.map(lambda one: assistant.ask(one[0], options=one[1]), asked))
        taken = time.perf_counter() - started
    stats = [answer.stats for answer in answers]
    firsts = [each.seconds if each.ttft_s is None else each.ttft_s for each in stats]
    return {
        "seconds": [each.seconds for each in stats], "first": firsts,
        "stages": {
            "embed": [each.embed_s for each in stats], "search": [each.search_s for each in stats],
            "rerank": [each.rerank_s for each in stats], "write": [each.generate_s for each in stats],
            "start": [
                min(each.generate_s, max(0.0, soon - (each.seconds - each.generate_s)))
                for each, soon in zip(stats, firsts, strict=True)
            ],
        },
        # A question is refused if no round of retrieval keeps a passage. Then no answer is written.
        "written": [not a.rounds or any(found.passages for found in a.rounds) for a in answers],
        "tokens": [each.new_tokens for each in stats], "per_s": len(stats) / taken, "troubles": troubles,
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
    help="Also measure a server with so many answers at a time.",
)
@setup_options(device=True)
@json_option
def profile(questions: Questions, rounds: int, answers: tuple[int, ...], setup: Setup, as_json: bool) -> None:
    """Measure embedding, search, reranking and writing on this machine, for `edge plan rag --on here`.

    The questions are answered under the memory limit in force, reranked and not, with several numbers of passages, and
    as a server answers them. Each is visited in several rounds, in processes of their own. Run it once for each limit,
    device and number of threads that you think of, when nothing else runs. The figures are kept beside the collection,
    for this machine and these models.
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
            f"{described(one.manner)}: {one.ratio:.2f} of the time for each with {counted(one.clients, 'client')}, "
            f"{format_size(int(one.nbytes))}"
        )
    click.echo(
        f"measured with {counted(readings[0].questions, 'question')} in {counted(rounds, 'round')} under "
        f"{format_size(config.memory)}; limits that are known: {len(known.limits)}",
        err=True,
    )


def described(manner: Manner) -> str:
    """Such as `4 answers at a time, generation auto, states auto, 1 thread and 3 for the language model`."""
    text = f"{counted(manner.answers, 'answer')} at a time, generation {manner.generation}, states {manner.states}"
    if manner.llm_threads:
        text += f", {counted(manner.threads, 'thread')} and {manner.llm_threads} for the language model"
    return f"{text}, on {manner.device}" if manner.device else text


def table(readings: Sequence[Reading]) -> Iterator[str]:
    yield f"{'limit':>9}{'judged':>8}{'passages':>10}{'answer':>10}{'written':>9}{'peak':>10}   " + ", ".join(STAGES)
    for p in readings:
        stages = ", ".join(format_duration(getattr(p, name)) for name in STAGES)
        yield (
            f"{format_size(p.limit):>9}{p.depth:>8}{p.passages:>10}{format_duration(p.seconds):>10}"
            f"{p.written:>9.0%}{format_size(int(p.nbytes)):>10}   {stages}"
        )


if __name__ == "__main__":
    worker.serve(work)
