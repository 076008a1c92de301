"""`rehearsal`: answers of a language model elsewhere, replayed, with and without running its searches ahead."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from bench.figures import Column, Figure, tabulate
from bench.options import Folder, Output, Rounds, WorkDir, benchmark, stated
from bench.rag_traces import cases
from bench.replay import answered, replay_of, replayed, same
from bench.texts import collection_of
from edge.apps.assistant.retrieval import CollectionLibrary
from edge.apps.assistant.steps import Steps
from edge.apps.collection.collection import Collection, Together
from edge.apps.verbs.requests import AskOptions
from edge.config import parse_size
from edge.errors import EdgeError
from edge.models.training.corpora import load as corpus_of
from edge.scheduling.predictor import TimePredictor

_WRITING = ("hyde", "subquestion", "iterative", "iter-retgen")
_AFTER, _AHEAD = "search afterwards", "search ahead"
_ARMS = {_AFTER: {"ahead": False}, _AHEAD: {"ahead": True}}


@benchmark
def rehearsal(
    *,
    data: Annotated[Folder, "--data", "Judged set in BEIR layout, whose texts are indexed."],
    decode: Annotated[float, "Tokens per second the replayed model writes."] = 50.0,
    prefill: Annotated[float, "Tokens per second it reads."] = 2000.0,
    questions: Annotated[int, "Measured per pipeline."] = 40,
    warmup: Annotated[int, "Before them; times are learned."] = 5,
    memory: Annotated[str, "Limit of the process."] = "300MB",
    rounds: Rounds = 1,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Replay a remote language model's answers from a collection: the time to the answer's first token."""
    corpus = corpus_of(data)
    folder = work_dir / f"rehearsal-{corpus.name}"
    collection_of(folder, (f"{title}\n\n{text}" for title, text in zip(corpus.titles, corpus.texts, strict=True)))
    task = {
        "folder": str(folder), "memory": parse_size(memory), "decode": decode, "prefill": prefill, "warmup": warmup,
    }  # fmt: skip
    found = replayed(work, task, cases(corpus)[: warmup + questions], rounds, 2, _WRITING, _ARMS)
    conditions = {**task, "texts": len(corpus.ids), "rounds": rounds, "folder": None, "questions": questions}
    rows = {pipeline: row(arms) for pipeline, arms in found.items()}
    output.put({"conditions": conditions, "pipelines": rows}, figures(rows), stated(conditions))
    if not all(each["identical"] for each in rows.values()):
        raise EdgeError("searching ahead changed what was found")


def row(arms: Mapping[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """The figures of one pipeline: medians over questions and rounds, and means of processor time."""
    found: dict[str, Any] = {"identical": same(arms)}
    for key, middle in (("first", statistics.median), ("after", statistics.median), ("processor", statistics.mean)):
        found[key] = {arm: middle(each[key] for rows in rounds for each in rows) for arm, rounds in arms.items()}
    return found | {"gain": found["after"][_AFTER] / found["after"][_AHEAD]}


def figures(rows: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    for key, table in (
        ("first", "to the first token of the answer"),
        ("after", "searching and ranking while nothing is written"),
        ("processor", "processor time of a question"),
    ):
        yield from tabulate(
            {name: each[key] for name, each in rows.items()}, {arm: Column(arm, "s") for arm in _ARMS}, table
        )
    yield from tabulate(rows, {"gain": Column("searching is shorter", "x")}, "gain")


def work(task: dict[str, Any]) -> dict[str, Any]:
    options, predictor = AskOptions(lookahead=task["ahead"], passages=3), TimePredictor()
    writer, rows = replay_of(task, elsewhere=True), []
    with Collection(Path(task["folder"]) / "collection", memory=task["memory"]) as collection:
        library = CollectionLibrary(Together({"": collection}))
        for question in task["questions"]:
            steps = Steps(library, writer, options, pipeline=task["pipeline"], predictor=predictor)
            rows.append(answered(question, steps, library.trace))
    return {"rows": rows}
