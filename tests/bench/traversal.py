"""`traversal`: searches a graph on a throttled device, with several groups under way (Falcon)."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench import index
from bench.figures import Figure, higher, lower, neither, tabulate
from bench.graph import GraphIndex, hnsw_graph, open_graph, write_graph
from bench.options import Folder, NewFolder, Otherwise, Output, benchmark, stated
from bench.process import measure, processor, say
from bench.rag_index import stored_sentences, stored_vectors
from bench.vectors import NEIGHBOURS, VectorSet
from bench.vectors import recall as recall_of
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError, InputError
from edge.models.registry import models_dir
from edge.models.training.corpora import load
from edge.runtimes.embedder import Embedder
from edge.trace import Trace

_EMBEDDING_MEMORY = 4 << 30
_LISTS_MEMORY = 4 << 30
_PROCESS_MEMORY = 8 << 30

_LONGEST = 1024
"""The longest queue of results that is tried to reach the recall."""

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Candidates of a group in synchronous search, which has one group under way."""

_GROUPS, _CANDIDATES = range(1, 8), range(1, 5)
"""The sizes in the source's figure."""


TRAVERSAL_HOPS: Sequence[Sequence[float]] = (
    (1.00, 1.08, 1.16, 1.24, 1.32, 1.40, 1.48), (1.07, 1.23, 1.39, 1.54, 1.70, 1.86, 2.01),
    (1.14, 1.38, 1.62, 1.85, 2.08, 2.32, 2.56), (1.21, 1.53, 1.84, 2.16, 2.47, 2.79, 3.12),
)  # fmt: skip
"""Hops over those of best-first search, for 1 to 4 candidates (rows) in 1 to 7 groups: figure 7.9 (Falcon)."""

TRAVERSAL_RECALL: Sequence[Sequence[float]] = (
    (94.11, 94.26, 94.40, 94.55, 94.63, 94.75, 94.86), (94.23, 94.53, 94.74, 94.94, 95.15, 95.33, 95.45),
    (94.36, 94.73, 95.05, 95.31, 95.50, 95.64, 95.79), (94.48, 94.93, 95.31, 95.54, 95.72, 95.89, 95.91),
)  # fmt: skip
"""Recall@10 in percent of the same searches, with a queue of 64 results over 10 million vectors."""


@benchmark
def traversal(
    *,
    rows: Annotated[int, "Made-up vectors, if no data is given."] = 30_000,
    folders: Annotated[
        tuple[Folder, ...],
        "--data",
        "Judged set in BEIR layout: its sentences are the rows; questions are the first one's.",
    ] = (),
    queries: int = 60,
    degree: Annotated[int, "Most neighbours of a vertex."] = 32,
    length: Annotated[int, "Queue of results for hops and recall by group size."] = 64,
    recall: Annotated[float, "Recall@10 that all reach where times are compared."] = 0.99,
    latency: Annotated[float, "Seconds of a request to the device."] = 1e-4,
    bandwidth: Annotated[str, "Of the link to the device, a second."] = "1GB",
    depth: Annotated[int, "Requests to the device whose latencies overlap."] = 64,
    rounds: Annotated[int, "Each query's fastest round counts."] = 3,
    lists: Annotated[bool, "Measure the index of lists and the graph on the host alone, too."] = False,
    work_dir: Annotated[
        NewFolder, "Where vectors and graph are made and kept.", Otherwise(lambda: models_dir() / "bench" / "traversal")
    ],
    output: Output,
) -> None:
    """Search a graph on a throttled device (`limited`) with several groups of candidates in flight (Falcon)."""
    vectors = _vectors(work_dir, folders, rows, queries)
    own = vectors.folder.parent
    task: dict[str, Any] = {
        "name": "the graph", "set": str(vectors.folder), "graph": str(own / f"degree-{degree}.graph"),
        "degree": degree, "length": length, "recall": recall, "latency": latency, "depth": depth, "rounds": rounds,
        "bandwidth": float(parse_size(bandwidth)),
    }  # fmt: skip
    built = _built(task)
    grid = [(groups, candidates) for candidates in _CANDIDATES for groups in _GROUPS]
    say("hops and recall by group size")
    figure = _run(task, action="counted", settings=grid)["rows"]
    for row in figure:
        place = _CANDIDATES.index(row["candidates"]), _GROUPS.index(row["groups"])
        row["times_first"] = row["hops"] / figure[0]["hops"]
        row["published_hops"] = TRAVERSAL_HOPS[place[0]][place[1]]
        row["published_recall"] = TRAVERSAL_RECALL[place[0]][place[1]] / 100
    say(f"queues for a recall of {recall}")
    settings = [(1, candidates) for candidates in _BATCHES] + [size for size in grid if size[0] > 1]
    reached = [row for row in _run(task, action="lengths", settings=settings)["rows"] if row is not None]
    if not any(row["groups"] > 1 for row in reached) or (reached[0]["groups"], reached[0]["candidates"]) != (1, 1):
        raise EdgeError(f"this graph does not reach a recall of {recall}; ask for less, or for a higher --degree")
    say(f"times with a latency of {latency * 1e6:.0f} microseconds")
    timed = _run(task, action="timed", watch=60, settings=[_setting(row) for row in reached])
    for row, seconds in zip(reached, timed["seconds"], strict=True):
        row["seconds"] = seconds
    chosen = best_of(reached)
    for row in chosen.values():
        alone = _run(task, action="timed", settings=[_setting(row)], rounds=1)
        row["peak_resident"] = alone["peak_resident"]
    report: dict[str, Any] = {
        "conditions": {
            "device": "limited (throttled test device)", "vectors": vectors.kind, "rows": vectors.rows,
            "dim": vectors.dim, "queries": len(vectors.queries), "degree": built["degree"],
            "graph_bytes": built["nbytes"], "latency_s": latency, "bandwidth": task["bandwidth"],
            "depth": depth,
            "recall": recall, "rounds": rounds, "processor": processor(),
        },
        "figure": {"length": length, "rows": figure},
        "at_equal_recall": reached, "chosen": chosen,
        "speedup": {
            name: chosen[name]["seconds"] / chosen["delayed"]["seconds"] for name in ("best-first", "synchronous")
        },
    }  # fmt: skip
    if lists:
        report["lists"] = _lists(task, own, recall, queries)
        here = _run(
            task, action="timed", watch=60, latency=0.0, bandwidth=math.inf, settings=[_setting(row) for row in reached]
        )
        report["lists"]["graph_seconds"] = min(here["seconds"])
    gain = report["speedup"]
    shown = (
        f"THROTTLED TEST DEVICE (limited)\n{stated(report['conditions'])}\ndelayed synchronisation is "
        f"{gain['best-first']:.2f} times as fast as best-first search and {gain['synchronous']:.2f} times as fast as "
        "the fastest search with one group under way; the source's figures are of other data"
    )
    output.put(report, figures(report), shown)


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Best-first search, the fastest search with one group under way, and the fastest with several."""
    return {
        "best-first": next(row for row in rows if (row["groups"], row["candidates"]) == (1, 1)),
        "synchronous": min((row for row in rows if row["groups"] == 1), key=lambda row: float(row["seconds"])),
        "delayed": min((row for row in rows if row["groups"] > 1), key=lambda row: float(row["seconds"])),
    }


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    found = {f"{row['groups']} groups of {row['candidates']}": row for row in report["figure"]["rows"]}
    counted = {
        "hops": lower("hops", ""), "times_first": neither("times best-first"),
        "published_hops": neither("the source's"), "recall": higher("recall@10", "%"),
        "published_recall": neither("the source's recall", "%"),
    }  # fmt: skip
    yield from tabulate(found, counted, f"hops and recall with a queue of {report['figure']['length']}")
    columns = {
        "groups": neither("groups"), "candidates": neither("candidates"), "length": neither("queue"),
        "hops": neither("hops"), "visited": neither("rows"), "seconds": lower("time", "s"),
        "peak_resident": lower("peak", "B"),
    }  # fmt: skip
    yield from tabulate(report["chosen"], columns, f"times at a recall of {report['conditions']['recall']}")
    if "lists" in report:
        timed = {
            "seconds": lower("time", "s"), "graph_seconds": lower("the graph's fastest setting", "s"),
            "recall": higher("recall@10", "%"), "peak_resident": lower("peak", "B"),
        }  # fmt: skip
        yield from tabulate({"lists": report["lists"]}, timed, "the index of lists, without a device")


def _setting(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["groups"], row["candidates"], row["length"]


def _vectors(place: Path, folders: Sequence[Path], rows: int, queries: int) -> VectorSet:
    if not folders:
        return VectorSet.made(place / f"made-{rows}-{queries}" / "vectors", rows=rows, queries=queries, base=None)
    corpora = [load(folder) for folder in folders]
    questions = list(corpora[0].queries.values())[:queries]
    if len(questions) < queries:
        raise InputError(f"{folders[0]} has {len(questions):,} questions, not {queries:,}")
    names = "-".join(corpus.name for corpus in corpora)
    own = place / names
    own.mkdir(parents=True, exist_ok=True)
    budget = MemoryBudget(_EMBEDDING_MEMORY)
    held = stored_vectors(own / "vectors.npy", stored_sentences(own / "texts.jsonl", corpora), budget)
    folder = own / f"questions-{queries}" / "vectors"
    if (folder / "queries.npy").exists():
        asked = np.asarray(np.load(folder / "queries.npy"), np.float32)
    else:
        with Embedder(budget=budget) as embedder:
            asked = embedder.embed(questions, query=True)
    return VectorSet.given(folder, held, asked, f"sentences of {names}, its questions as queries")


def _built(task: dict[str, Any]) -> dict[str, Any]:
    """Builds the graph unless it exists. Returns the measurements of its building."""
    note = Path(task["graph"]).with_suffix(".json")
    if not note.exists():
        say("building the graph")
        note.write_text(json.dumps(_run(task, action="build")), encoding="utf-8")
    built: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    return built


def _run(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return measure(work, task | more, threads=1)


def _lists(task: dict[str, Any], own: Path, recall: float, queries: int) -> dict[str, Any]:
    say("the index of lists")
    lists = task | {
        "name": "the index of lists", "index": str(own / "index"), "memory": _LISTS_MEMORY, "codec": "auto",
        "nprobe": None, "cold": 0,
    }  # fmt: skip
    if not (own / "index" / "index.db").exists():
        measure(index.work, lists | {"action": "build"}, threads=1)
    found = measure(index.work, lists | {"action": "search"}, threads=1)
    vectors = VectorSet.stored(Path(task["set"]))
    half = queries // 2
    return {
        "seconds": statistics.median(found["warm"]), "recall": recall_of(found["ids"], vectors.truth),
        "measured": queries - half,
        "codec": found["codec"], "lists": found["lists"], "nprobe": found["nprobe"],
        "peak_resident": found["peak_resident"],
    }  # fmt: skip


def work(task: dict[str, Any]) -> dict[str, Any]:
    return {"build": _build, "counted": _counted, "lengths": _lengths, "timed": _timed}[task["action"]](task)


@contextmanager
def opened(
    task: dict[str, Any], *, bandwidth: float = math.inf, latency: float = 0.0, depth: int = 1
) -> Iterator[tuple[GraphIndex, Trace]]:
    """Opens the task's graph on a throttled device just large enough for it."""
    budget, trace = MemoryBudget(_PROCESS_MEMORY), Trace()
    facts, file = open_graph(Path(task["graph"]))
    file.close()
    device = LimitedDevice(budget, cap=facts.nbytes, bandwidth=bandwidth, latency=latency, depth=depth, trace=trace)
    try:
        with GraphIndex(Path(task["graph"]), device=device, budget=budget, trace=trace) as graph:
            yield graph, trace
    finally:
        device.close()


def _build(task: dict[str, Any]) -> dict[str, Any]:
    vectors = VectorSet.stored(Path(task["set"])).mapped()
    budget = MemoryBudget(_PROCESS_MEMORY)
    started = time.perf_counter()
    neighbours, entry = hnsw_graph(vectors, task["degree"], budget=budget)
    facts = write_graph(Path(task["graph"]), vectors, neighbours, entry, budget)
    return {
        "seconds": time.perf_counter() - started, "nbytes": facts.nbytes,
        "degree": float((neighbours >= 0).sum() / len(neighbours)),
    }  # fmt: skip


def _counted(task: dict[str, Any]) -> dict[str, Any]:
    """Hops and recall of each setting with a queue of the task's length."""
    vectors = VectorSet.stored(Path(task["set"]))
    with opened(task) as (graph, trace):
        return {
            "rows": [
                counted(graph, trace, vectors, groups, candidates, task["length"])
                for groups, candidates in task["settings"]
            ]
        }


def counted(
    graph: GraphIndex, trace: Trace, vectors: VectorSet, groups: int, candidates: int, length: int
) -> dict[str, Any]:
    """Hops of a query, rows requested for it, and recall@10 of one setting."""
    queries = vectors.queries
    before = trace.snapshot()
    found = graph.search(queries, NEIGHBOURS, length=length, groups=groups, candidates=candidates)
    grown = trace.since(before)
    return {
        "groups": groups, "candidates": candidates, "length": length,
        "recall": recall_of(found.ids.tolist(), vectors.truth),
        "hops": grown["graph.hops"] / len(queries), "visited": grown["graph.rows"] / len(queries),
    }  # fmt: skip


def _lengths(task: dict[str, Any]) -> dict[str, Any]:
    """For each setting, the figures with the shortest queue that reaches the task's recall; None if none does."""
    vectors = VectorSet.stored(Path(task["set"]))
    with opened(task) as (graph, trace):
        found = []
        for groups, candidates in task["settings"]:
            reached, low, high = None, NEIGHBOURS, NEIGHBOURS
            while reached is None and high <= _LONGEST:
                row = counted(graph, trace, vectors, groups, candidates, high)
                if row["recall"] >= task["recall"]:
                    reached = row
                else:
                    low, high = high + 1, 2 * high
            while reached is not None and low < reached["length"]:
                row = counted(graph, trace, vectors, groups, candidates, (low + reached["length"]) // 2)
                if row["recall"] >= task["recall"]:
                    reached = row
                else:
                    low = row["length"] + 1
            found.append(reached)
        return {"rows": found}


def _timed(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a query with each setting on the throttled device: the mean over the queries.

    The settings take turns, query by query. Of each query the fastest of the rounds counts, because other programs
    slow down some of them.
    """
    queries = VectorSet.stored(Path(task["set"])).queries
    link = {name: task[name] for name in ("bandwidth", "latency", "depth")}
    with opened(task, **link) as (graph, _):
        best = np.full((len(task["settings"]), len(queries)), np.inf)
        for _ in range(task["rounds"]):
            for number in range(len(queries)):
                for place, setting in enumerate(task["settings"]):
                    groups, candidates, length = setting
                    started = time.perf_counter()
                    graph.search(
                        queries[number : number + 1], NEIGHBOURS, length=length, groups=groups, candidates=candidates
                    )
                    best[place, number] = min(best[place, number], time.perf_counter() - started)
        return {"seconds": best.mean(axis=1).tolist()}
