"""`assistant`: replays six pipelines over an index on disk, with and without lookahead (TeleRAG)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from bench.figures import Column, Figure, tabulate
from bench.options import Folder, Output, Rounds, WorkDir, benchmark, stated
from bench.rag_index import LINK, IndexLibrary, build
from bench.rag_traces import PASSAGES, PIPELINES, ROUNDS, cases
from bench.replay import answered, replay_of, replayed, same
from bench.vectors import opened_index
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
    task = {
        "folder": str(folder), "list_memory": int(nbytes * memory_share), "bandwidth": parse_size(bandwidth),
        "prefill": prefill, "decode": decode, "warmup": warmup,
    }  # fmt: skip
    found = replayed(work, task, asked, rounds, 1, PIPELINES, _ARMS)
    results = [_row(pipeline, arms) for pipeline, arms in found.items()]
    conditions = task | {
        "rows": made, "lists": lists, "index_bytes": nbytes, "data": [corpus.name for corpus in corpora],
        "questions": questions, "rounds": rounds, "folder": None,
    }  # fmt: skip
    result = {"conditions": conditions, "pipelines": results}
    output.put(result, figures(results), stated(conditions))
    if not all(row["identical"] for row in results):
        raise EdgeError("lookahead changed what was found")


def _row(pipeline: str, arms: Mapping[str, Sequence[Sequence[dict[str, Any]]]]) -> dict[str, Any]:
    """The figures of one pipeline: means over questions and medians over rounds. Lists are in the order of the arms."""

    def mean(arm: str, *counters: str) -> float:
        """The median of the means per question: of the sum of some counters, or of the seconds."""

        def value(row: dict[str, Any]) -> float:
            return float(sum(row["counters"].get(name, 0.0) for name in counters) if counters else row["seconds"])

        return statistics.median(statistics.mean(map(value, rows)) for rows in arms[arm])

    hideable = statistics.median(statistics.mean(row["hideable"] for row in rows) for rows in arms["on demand"])
    seconds = [mean(arm) for arm in arms]
    return {
        "pipeline": pipeline,
        "seconds": seconds,
        "hideable_s": hideable,
        "share": (seconds[1] - seconds[2]) / hideable if hideable else None,
        "stall_s": [mean(arm, f"{LINK}.stall_s") for arm in arms],
        "hit_rate": [mean(arm, "index.hits") / max(1e-9, mean(arm, "index.hits", "index.lists_read")) for arm in arms],
        "fetched_ahead": [mean(arm, "lists.ahead") for arm in arms],
        "identical": same(arms),
    }


def figures(results: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    rows = {row["pipeline"]: row for row in results}
    for key, table in (("seconds", "time of a question"), ("stall_s", "waits of a question for the link")):
        by_arm = {name: dict(zip(_ARMS, row[key], strict=True)) for name, row in rows.items()}
        yield from tabulate(by_arm, {arm: Column(arm, "s") for arm in _ARMS}, table)
    columns = {"hideable_s": Column("perfect foresight would save", "s"), "share": Column("lookahead saves", "%")}
    yield from tabulate(rows, columns, "lookahead")


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[IndexLibrary]:
    """Opens the task's index, with its lists in a separate memory behind a link."""
    trace = Trace()
    folder, process = Path(task["folder"]), MemoryBudget(_PROCESS_MEMORY)
    lane = Lane(LINK, trace=trace, bandwidth_limit=task["bandwidth"])
    device = CpuDevice(MemoryBudget(task["list_memory"], part=True), link=lane, trace=trace)
    given = {"trace": trace, "device": device, "options": IndexOptions(codec="flat", flat_limit=0)}
    with (
        lane,
        Embedder(budget=process) as embedder,
        opened_index(folder, embedder.dim, process, read_only=True, **given) as (index, database),
    ):
        yield IndexLibrary(folder, index, database, embedder, reuse=task["reuse"], trace=trace)


def work(task: dict[str, Any]) -> dict[str, Any]:
    options = AskOptions(
        passages=PASSAGES, pool=PASSAGES, rerank=False, rounds=ROUNDS, lookahead=task["lookahead"],
        max_tokens=_MOST_TOKENS,
    )  # fmt: skip
    replay, predictor, rows = replay_of(task), TimePredictor(), []
    with opened(task) as library:
        for question in task["questions"]:
            library.begin()
            steps = Steps(library, replay, options, pipeline=task["pipeline"], predictor=predictor)
            rows.append(answered(question, steps, library.trace) | {"hideable": library.hideable})
    return {"rows": rows}
