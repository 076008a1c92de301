"""`rehearsal`: answers of a language model elsewhere, replayed, with and without running its searches ahead."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Folder, Output, Rounds, WorkDir, benchmark, stated
from bench.process import in_turn, measure, say
from bench.rag_traces import cases, write_trace
from bench.replay import ReplayGenerator
from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.retrieval import CollectionLibrary
from edge.apps.assistant.steps import Steps
from edge.apps.collection.collection import Collection, Together
from edge.apps.verbs.requests import AskOptions
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.errors import EdgeError
from edge.models.training.corpora import Corpus
from edge.models.training.corpora import load as corpus_of
from edge.scheduling.predictor import TimePredictor

_WRITING = ("hyde", "subquestion", "iterative", "iter-retgen")
_AFTER, _AHEAD = "search afterwards", "search ahead"
_ARMS = {_AFTER: False, _AHEAD: True}


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
    make(folder, corpus)
    asked = cases(corpus)[: warmup + questions]
    common = {
        "folder": str(folder), "questions": [case.question for case in asked], "memory": parse_size(memory),
        "decode": decode, "prefill": prefill,
    }  # fmt: skip
    found = {}
    for pipeline in _WRITING:
        trace = folder / f"{pipeline}.jsonl"
        write_trace(trace, pipeline, asked)
        task = {**common, "trace": str(trace), "pipeline": pipeline}
        say(pipeline)
        reports, _ = in_turn(
            rounds,
            _ARMS,
            lambda arm, task=task: measure(work, {**task, "ahead": _ARMS[arm], "name": arm}, threads=2),  # type: ignore[misc]
        )
        found[pipeline] = {arm: [report["rows"][warmup:] for report in reports[arm]] for arm in _ARMS}
    conditions = {**common, "texts": len(corpus.ids), "rounds": rounds, "folder": None, "questions": questions}
    rows = {pipeline: row(arms) for pipeline, arms in found.items()}
    output.put({"conditions": conditions, "pipelines": rows}, figures(rows), stated(conditions))
    if not all(each["identical"] for each in rows.values()):
        raise EdgeError("searching ahead changed what was found")


def make(folder: Path, corpus: Corpus) -> None:
    """A collection of a set's texts, unless it is there."""
    if (folder / "done").exists():
        return
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for number, (title, text) in enumerate(zip(corpus.titles, corpus.texts, strict=True)):
        (texts / f"{number}.txt").write_text(f"{title}\n\n{text}\n", "utf-8")
    with Collection(folder / "collection", memory="1GB") as collection:
        collection.index([texts])
    (folder / "done").touch()


def row(arms: dict[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """The figures of one pipeline: medians over questions and rounds."""
    first = {arm: [each["first"] for rows in rounds for each in rows] for arm, rounds in arms.items()}
    after = {arm: [each["after"] for rows in rounds for each in rows] for arm, rounds in arms.items()}
    same = [[each["found"] for each in rows] for rounds in arms.values() for rows in rounds]
    return {
        "first": {arm: statistics.median(values) for arm, values in first.items()},
        "after": {arm: statistics.median(values) for arm, values in after.items()},
        "processor": {
            arm: statistics.mean(each["processor"] for rows in rounds for each in rows) for arm, rounds in arms.items()
        },
        "identical": all(each == same[0] for each in same),
    }


def figures(rows: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    for key, table in (
        ("first", "to the first token of the answer"),
        ("after", "searching and ranking while nothing is written"),
        ("processor", "processor time of a question"),
    ):
        yield from tabulate(
            {name: each[key] for name, each in rows.items()}, {arm: lower(arm, "s") for arm in _ARMS}, table
        )
    gains = {
        name: {"gain": each["after"]["search afterwards"] / each["after"]["search ahead"]}
        for name, each in rows.items()
    }
    yield from tabulate(gains, {"gain": higher("searching is shorter", "x")}, "gain")


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[CollectionLibrary]:
    budget = MemoryBudget(task["memory"])
    with Collection(Path(task["folder"]) / "collection", budget=budget) as collection:
        yield CollectionLibrary(Together({"": collection}))


def work(task: dict[str, Any]) -> dict[str, Any]:
    options, predictor = AskOptions(lookahead=task["ahead"], passages=3), TimePredictor()
    writer = ReplayGenerator(Path(task["trace"]), prefill=task["prefill"], decode=task["decode"], elsewhere=True)
    rows = []
    with opened(task) as library:
        for question in task["questions"]:
            steps = Steps(library, writer, options, pipeline=task["pipeline"], predictor=predictor)
            rows.append(answered(question, steps))
    return {"rows": rows}


def answered(question: str, steps: Steps) -> dict[str, Any]:
    """The seconds to the first token of an answer, and those between generations that went before it."""
    before, used = steps.trace.snapshot(), time.process_time()
    started = time.perf_counter()
    first = None
    with suppress(NotInDocuments):
        for text in PIPELINES[steps.pipeline](question, steps):
            if text and first is None:
                first = time.perf_counter() - started
    ended = time.perf_counter() - started
    steps.close()
    grown = steps.trace.since(before)
    return {
        "first": ended if first is None else first, "after": ended - grown["assistant.generate_s"],
        "parts": {name: grown.get(f"assistant.{name}_s", 0.0) for name in ("embed", "search", "rerank")},
        "processor": time.process_time() - used,
        "found": json.dumps([[hit.citation for hit in each.passages] for each in steps.rounds]),
    }  # fmt: skip
