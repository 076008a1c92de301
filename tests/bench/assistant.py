"""`assistant`: replays six pipelines over an index on disk, with and without lookahead (TeleRAG)."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from bench.figures import Figure, lower, neither, tabulate
from bench.options import Folder, Output, Rounds, WorkDir, benchmark, stated
from bench.process import in_turn, measure, say
from bench.rag_index import LINK, IndexLibrary, build
from bench.rag_traces import PASSAGES, PIPELINES, ROUNDS, cases, write_trace
from bench.replay import ReplayGenerator
from bench.vectors import opened_index
from edge.apps.assistant import pipelines as steps_of
from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.steps import Steps
from edge.apps.verbs.requests import AskOptions
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.cpu import CpuDevice
from edge.errors import EdgeError, InputError
from edge.ivf.index import IndexOptions
from edge.link import Lane
from edge.models.training.corpora import load as corpus_of
from edge.runtimes.embedder import Embedder
from edge.runtimes.generation.base import Generator
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

_ARMS = {
    "read anew": {"lookahead": False, "reuse": False},
    "on demand": {"lookahead": False, "reuse": True},
    "lookahead": {"lookahead": True, "reuse": True},
}
"""The three arms. In `read anew` every search reads its lists, as in TeleRAG's baseline; in `on demand` it also finds
lists that earlier searches left in memory; `lookahead` adds lookahead to that."""

_PROCESS_MEMORY = 4 << 30
_MOST_TOKENS = 64
"""The most tokens of an answer. A small model writes until its limit."""


@benchmark
def assistant(
    *,
    bandwidth: Annotated[str, "Of the link to the index, per second."] = "12MB",
    decode: Annotated[float, "Tokens per second the replayed model writes."] = 100.0,
    prefill: Annotated[float, "Tokens per second it reads."] = 2000.0,
    questions: Annotated[int, "Measured per pipeline."] = 16,
    warmup: Annotated[int, "Before them; times are learned and lists cached."] = 4,
    rounds: Rounds = 1,
    data: Annotated[
        tuple[Folder, ...],
        "--data",
        "Judged set in BEIR layout; questions and texts are the first one's, all of them are indexed.",
    ],
    rows: Annotated[int, "Vectors; real ones first, then copies."] = 200_000,
    list_rows: Annotated[int, "Vectors per list that training aims at."] = 256,
    memory_share: Annotated[float, "Of the index, that lists may take."] = 0.1,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Replay pipelines over an index on disk: on-demand retrieval against lookahead, same memory."""
    corpora = [corpus_of(folder) for folder in data]
    folder = work_dir / f"rag-{rows}-{list_rows}"
    made, lists, nbytes = build(folder, corpora, rows, list_rows=list_rows)
    asked = cases(corpora[0])[: warmup + questions]
    if len(asked) < warmup + questions:
        raise InputError(f"{corpora[0].name} has only {len(asked)} questions with company in paragraph and article")
    common = {
        "folder": str(folder), "questions": [case.question for case in asked],
        "list_memory": int(nbytes * memory_share), "bandwidth": parse_size(bandwidth),
        "prefill": prefill, "decode": decode,
    }  # fmt: skip
    results = []
    for pipeline in PIPELINES:
        trace = folder / f"{pipeline}.jsonl"
        write_trace(trace, pipeline, asked)
        task = {**common, "trace": str(trace), "pipeline": pipeline}
        say(pipeline)
        reports, _ = in_turn(
            rounds,
            _ARMS,
            lambda arm, task=task: measure(work, {**task, **_ARMS[arm], "name": arm}, threads=1),  # type: ignore[misc]
        )
        nprobe = reports["lookahead"][-1]["nprobe"]
        results.append(_row(pipeline, *([report["rows"][warmup:] for report in reports[arm]] for arm in _ARMS)))
    conditions = {
        "rows": made, "lists": lists, "index_bytes": nbytes, "data": [corpus.name for corpus in corpora],
        "list_memory": common["list_memory"], "nprobe": nprobe, "bandwidth": common["bandwidth"],
        "prefill": prefill, "decode": decode, "questions": questions, "rounds": rounds,
    }  # fmt: skip
    result = {"conditions": conditions, "pipelines": results}
    output.put(result, figures(results), stated(conditions))
    if not all(row["identical"] for row in results):
        raise EdgeError("lookahead changed what was found")


def _row(
    pipeline: str,
    anew: Sequence[Sequence[dict[str, Any]]],
    on_demand: Sequence[Sequence[dict[str, Any]]],
    ahead: Sequence[Sequence[dict[str, Any]]],
) -> dict[str, Any]:
    """The figures of one pipeline: means over questions and medians over rounds. Lists are in the order of the arms."""
    arms = (anew, on_demand, ahead)

    def mean(reports: Sequence[Sequence[dict[str, Any]]], *counters: str) -> float:
        """The median of the means per question: of the sum of some counters, or of the seconds."""

        def value(row: dict[str, Any]) -> float:
            return float(sum(row["counters"].get(name, 0.0) for name in counters) if counters else row["seconds"])

        return statistics.median(statistics.mean(map(value, report)) for report in reports)

    hideable = statistics.median(statistics.mean(_hideable(row["searches"]) for row in report) for report in on_demand)
    seconds = [mean(reports) for reports in arms]
    probed = [mean(reports, "index.hits", "index.lists_read") for reports in arms]
    hits = [mean(reports, "index.hits") / max(1e-9, lists) for reports, lists in zip(arms, probed, strict=True)]
    same = [[(row["found"], row["text"]) for row in report] for reports in arms for report in reports]
    return {
        "pipeline": pipeline,
        "seconds": seconds,
        "hideable_s": hideable,
        "share": (seconds[1] - seconds[2]) / hideable if hideable else None,
        "stall_s": [mean(reports, f"{LINK}.stall_s") for reports in arms],
        "hit_rate": hits,
        "fetched_ahead": [mean(reports, "lists.ahead") for reports in arms],
        "identical": all(report == same[0] for report in same),
    }


def figures(results: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    rows = {row["pipeline"]: row for row in results}
    for key, table in (("seconds", "time of a question"), ("stall_s", "waits of a question for the link")):
        by_arm = {name: dict(zip(_ARMS, row[key], strict=True)) for name, row in rows.items()}
        yield from tabulate(by_arm, {arm: lower(arm, "s") for arm in _ARMS}, table)
    columns = {"hideable_s": neither("perfect foresight would save", "s"), "share": neither("lookahead saves", "%")}
    yield from tabulate(rows, columns, "lookahead")


def _hideable(searches: Sequence[dict[str, float]]) -> float:
    """The seconds of one question that perfect foresight would save: the wait of each search on demand, but at most the
    duration of the generation before it, which can hide it."""
    return sum((min(search["stall"], search["window"]) for search in searches), 0.0)


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[IndexLibrary]:
    """Opens the task's index, with its lists in a separate memory behind a link."""
    trace = Trace()
    folder = Path(task["folder"])
    process = MemoryBudget(_PROCESS_MEMORY)
    lane = Lane(LINK, trace=trace, bandwidth_limit=task["bandwidth"])
    device = CpuDevice(MemoryBudget(task["list_memory"], part=True), link=lane, trace=trace)
    with (
        lane,
        Embedder(budget=process) as embedder,
        opened_index(
            folder,
            embedder.dim,
            process,
            read_only=True,
            trace=trace,
            device=device,
            options=IndexOptions(codec="flat", flat_limit=0),
        ) as (index, database),
    ):
        yield IndexLibrary(folder, index, database, embedder, reuse=task["reuse"], trace=trace)


def work(task: dict[str, Any]) -> dict[str, Any]:
    with opened(task) as library:
        options, predictor = options_of(task), TimePredictor()

        def ask(question: str, generator: Generator) -> dict[str, Any]:
            steps = Steps(library, generator, options, pipeline=task["pipeline"], predictor=predictor)
            return answered(library, question, steps)

        replay = ReplayGenerator(
            Path(task["trace"]), prefill=task["prefill"] or math.inf, decode=task["decode"] or math.inf
        )
        return {"rows": [ask(question, replay) for question in task["questions"]], "nprobe": library.nprobe}


def options_of(task: dict[str, Any]) -> AskOptions:
    """The options of all questions of a replay."""
    return AskOptions(
        passages=PASSAGES, pool=PASSAGES, rerank=False, rounds=ROUNDS, lookahead=task["lookahead"],
        max_tokens=_MOST_TOKENS,
    )  # fmt: skip


def answered(library: IndexLibrary, question: str, steps: Steps) -> dict[str, Any]:
    """The answer to one question, with its figures."""
    library.begin()
    before = library.trace.snapshot()
    started = time.perf_counter()
    with suppress(NotInDocuments):
        text = ""
        for piece in steps_of.PIPELINES[steps.pipeline](question, steps):
            text += piece
    seconds = time.perf_counter() - started
    steps.close()
    return {
        "seconds": seconds, "text": text, "found": [[hit.id for hit in entry.passages] for entry in steps.rounds],
        "searches": list(library.searches), "counters": library.trace.since(before),
    }  # fmt: skip
