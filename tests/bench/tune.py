"""`tune`: the chosen parameters of an index beside every other point of the grid, on held-out queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench.figures import Figure
from bench.options import Base, File, Output, Threads, VectorsDir, benchmark, stated
from bench.process import measure, processor, say
from bench.process import timed as timed_all
from bench.vectors import NEIGHBOURS, Floats, VectorSet, embeddings, opened_index, recall
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.errors import InputError
from edge.ivf.base import Goal, Parameters, Snapshot, Tuned
from edge.ivf.device import Search, open_device
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.maintainer import maintain
from edge.ivf.search import IndexSearcher
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segment_writer import assign
from edge.tuning.sampled import Sampled
from edge.tuning.stage_costs import searched_with, small_index
from edge.tuning.tuner import TuningCandidates, grid, probes, within

_LEAST = 60
"""The fewest questions: half of them are used to choose, and half are held out."""

_FINAL = 6
"""Points of the grid, the fastest of the sweep, that are measured again together with the choice."""


@benchmark
def tune(
    *,
    rows: Annotated[int, "Number of made-up vectors, without --vectors."] = 100_000,
    base: Base = None,
    vectors: Annotated[File | None, "Embeddings (.npy [n, dim]) to search as they are; needs --questions."] = None,
    questions: Annotated[File | None, "Embedded questions (.npy [q, dim]) for --vectors."] = None,
    queries: Annotated[int, "Queries: half choose, half are held out."] = 4_000,
    recalls: Annotated[tuple[float, ...], "--recall"] = (0.8, 0.95),
    memory: Annotated[str, "Limit of the whole process."] = "600MB",
    timed: Annotated[int, "Held-out queries that are timed."] = 32,
    rounds: Annotated[int, "Turns in which all points are timed."] = 3,
    threads: Annotated[Threads, "Threads of training."] = 2,
    work_dir: VectorsDir,
    output: Output,
) -> None:
    """Choose an index's parameters, and time every other point of the grid beside the choice."""
    limit = parse_size(memory)
    for wanted in recalls:
        Goal(recall=wanted)  # an invalid goal is refused before any vector is made
    if queries < _LEAST:
        raise InputError(f"half of the questions choose: at least {_LEAST} are needed, not {queries}")
    if (vectors is None) != (questions is None):
        raise InputError("--vectors and --questions go together: embeddings, and the questions that are asked of them")
    say("vectors and exact answers")
    if vectors is None or questions is None:
        made = VectorSet.made(work_dir / "vectors", rows=rows, queries=queries, base=base)
    else:
        rows_of, asked = embeddings(vectors), embeddings(questions)[:queries]
        if rows_of.shape[1] != asked.shape[1] or len(asked) < _LEAST:
            raise InputError(
                f"vectors {list(rows_of.shape)} and questions {list(asked.shape)} do not fit each other, or there are "
                f"fewer than {_LEAST} questions"
            )
        made = VectorSet.given(work_dir / "vectors", rows_of, asked, f"{len(rows_of):,} given embeddings")
    task = {
        "set": str(made.folder), "index": str(work_dir / "index"), "memory": limit, "recalls": list(recalls),
        "timed": timed, "rounds": rounds, "threads": threads, "watch": 0.05,
    }  # fmt: skip
    say("choice and sweep")
    report = measure(work, task, threads=threads)
    result = report | {"limit": limit, "processor": processor(), "timed": timed, "rounds": rounds, "threads": threads}
    output.put(result, figures(result), stated(result), held=report["peak_resident"], limit=limit)


def figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    for row, index in zip(result["goals"], result["indexes"], strict=True):
        goal = f"recall {row['goal']:g}"
        for name in ("chosen", "fastest"):
            yield Figure(f"{goal}, {name}", "held-out recall@10", "", "higher", (row[name]["recall"],))
            yield Figure(f"{goal}, {name}", "query", "s", "lower", (row[name]["seconds"],))
        yield Figure(f"{goal}, chosen", "predicted", "s", "neither", (row["predicted_s"],))
        yield Figure(f"{goal}, index", "held-out recall@10", "", "higher", (index["recall"],))
        yield Figure(f"{goal}, index", "query", "s", "lower", (index["seconds"],))
    yield Figure("all", "choice", "s", "lower", (result["choice_s"],))
    yield Figure("all", "peak memory", "B", "lower", (float(result["peak_resident"]),))


@dataclass
class _Point:
    """One point of the grid: parameters, the fewest lists that reach the goal on the held-out queries, and seconds."""

    parameters: Parameters
    nprobe: int
    recall: float
    seconds: float = float("inf")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def work(task: dict[str, Any]) -> dict[str, Any]:
    vectors = VectorSet.stored(Path(task["set"]))
    half = len(vectors.queries) // 2
    budget = MemoryBudget(task["memory"])
    with opened_index(Path(task["index"]), vectors.dim, budget, threads=task["threads"]) as (index, database):
        with database.read() as db:
            known = index.status(db).rows
        for start, rows in vectors.blocks(known):
            with budget.reserve("vectors", rows.nbytes), database.write() as db:
                index.add(db, np.arange(start, start + len(rows)), rows)
        report: dict[str, Any] = {}

        def use(candidates: TuningCandidates) -> None:
            report["choice_s"] = time.perf_counter() - started
            report.update(_compared(candidates, task, vectors, half))

        started = time.perf_counter()
        index.examine(database.write, use, questions=vectors.queries[:half])
        report["indexes"] = [
            _indexed(index, database.write, database.read, Tuned.from_json(row["record"]), vectors, half)
            for row in report["goals"]
        ]
    return report


def _compared(candidates: TuningCandidates, task: dict[str, Any], vectors: VectorSet, half: int) -> dict[str, Any]:
    own = candidates.work
    with own.write() as db:
        sources = list(own.sources(IndexManifest(db)).values())
    goals = [Goal(recall=recall) for recall in task["recalls"]]
    choices = [candidates.choose(goal) for goal in goals]
    started = time.perf_counter()
    held = vectors.queries[half:]
    exact = Sampled(sources, held, candidates.centroids, candidates.codecs, budget=own.budget, check=lambda done: None)
    tried = list(grid(exact, candidates.lists))
    tried = within(tried, exact.rows, own.budget.limit // 2, strict=False)
    sweep = _Sweep(candidates, vectors, held[: task["timed"]])
    points = [[_least(exact, parameters, goal) for parameters in tried] for goal in goals]
    mine = [
        _Point(choice.parameters, choice.nprobe, exact.expected(choice.parameters, choice.nprobe).recall)
        for choice in choices
    ]
    sweep.measure([*mine, *(point for row in points for point in row if point)], task["rounds"])
    rows = []
    for goal, choice, point, others in zip(goals, choices, mine, points, strict=True):
        found = sorted((other for other in others if other), key=lambda other: other.seconds)
        final = [replace(other, seconds=float("inf")) for other in found[:_FINAL]]
        again = replace(point, seconds=float("inf"))
        sweep.measure([again, *final], 3 * task["rounds"])
        fastest = min(final, key=lambda other: other.seconds)
        rows.append({
            "goal": goal.recall, "record": candidates.record(choice, goal).to_json(), "predicted_s": choice.seconds,
            "sample_recall": choice.expected.recall, "chosen": again.to_json(), "fastest": fastest.to_json(),
            "ratio": again.seconds / fastest.seconds, "points": len(found),
            "slowest_s": found[-1].seconds, "median_s": found[len(found) // 2].seconds,
            "sweep": [other.to_json() for other in found],
        })  # fmt: skip
    sweep.close()
    return {
        "goals": rows, "sweep_s": time.perf_counter() - started,
        "model_error": candidates.costs.error, "rates": dict(candidates.costs.rates), "rows": exact.rows,
        "dim": vectors.dim, "kind": vectors.kind, "questions": half, "held_out": len(held),
    }  # fmt: skip


def _least(sampled: Sampled, parameters: Parameters, goal: Goal) -> _Point | None:
    """The fewest lists with which these parameters reach the goal on the held-out queries; None if none do."""
    assert goal.recall is not None
    for nprobe in probes(parameters.lists):
        if sampled.bound(parameters.lists, nprobe) < goal.recall:
            continue
        recall = sampled.expected(parameters, nprobe).recall
        if recall >= goal.recall:
            return _Point(parameters, nprobe, recall)
    return None


class _Sweep:
    """Indexes of all rows, made when they are first measured, and searches that are timed in turns."""

    def __init__(self, candidates: TuningCandidates, vectors: VectorSet, queries: Floats) -> None:
        self._candidates, self._queries = candidates, queries
        self._vectors = vectors
        host = open_device("cpu", candidates.work.budget)
        assert isinstance(host, Search), "the host searches lists"
        self._host, self._searcher = host, IndexSearcher(host)
        self._snapshots: dict[tuple[int, str, int], Snapshot] = {}

    def measure(self, points: list[_Point], rounds: int) -> None:
        """Sets each point's `seconds`: the mean over the queries of the shortest of several times.

        The lists of a point are resident when it is timed. Points take turns in each round.
        """
        best = np.full((len(points), len(self._queries)), np.inf)
        for _ in range(rounds):
            for number, point in enumerate(points):
                snapshot = self._snapshot(point.parameters)
                own = searched_with(snapshot, point.parameters, point.nprobe)
                self._searcher.release_lists()
                for timed in (False, True):
                    for place, query in enumerate(self._queries):
                        started = time.perf_counter()
                        self._searcher.search(own, query[None], NEIGHBOURS, nprobe=point.nprobe)
                        if timed:
                            best[number, place] = min(best[number, place], time.perf_counter() - started)
        for point, seconds in zip(points, best.mean(axis=1).tolist(), strict=True):
            point.seconds = seconds

    def close(self) -> None:
        self._searcher.close()
        self._host.close()

    def _snapshot(self, p: Parameters) -> Snapshot:
        key = (p.lists, p.codec, p.code_size)
        if key not in self._snapshots:
            rows = self._vectors.mapped()
            centroids = self._candidates.centroids.get(p.lists)
            if centroids is None:
                centroids = np.zeros((1, rows.shape[1]), np.float32)
            lists = assign(rows, centroids)[0]
            codec = self._candidates.codecs[p.codec, p.code_size]
            self._snapshots[key] = small_index(self._candidates.work, rows, lists, centroids, codec)
        return self._snapshots[key]


def _indexed(
    index: VectorIndex, write: Callable[[], Any], read: Callable[[], Any], tuned: Tuned, vectors: VectorSet, half: int
) -> dict[str, Any]:
    """Trains the index itself with a choice, and searches it for the held-out queries as any caller does."""
    started = time.perf_counter()
    maintain(index._work(write), lambda own: tuned)
    trained = time.perf_counter() - started
    truth, held = vectors.truth[half:], vectors.queries[half:]
    with read() as db:
        status = index.status(db)
        for _ in range(2):
            found, times = timed_all(lambda query: index.search(db, query[None], NEIGHBOURS), held)
    return {
        "recall": recall((one.ids[0].tolist() for one in found), truth), "seconds": float(np.median(times)),
        "nprobe": found[-1].nprobe, "lists": status.lists, "codec": status.codec, "nbytes": status.nbytes,
        "train_s": trained,
    }  # fmt: skip
