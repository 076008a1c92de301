"""Measures the search of a graph: building it, its hops and recall, its time on a throttled device, and its memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.graph_file import hnsw_graph, open_graph, write_graph
from bench.graph_index import GraphIndex
from bench.vectors import NEIGHBOURS, Floats, VectorSet, recall
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.trace import Trace

_PROCESS_MEMORY = 8 << 30
_LONGEST = 1024
"""The longest queue of results that is tried to reach the recall."""


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `action`."""
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
        "recall": recall(found.ids.tolist(), vectors.truth),
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
                    seconds = _seconds(graph, queries[number : number + 1], *setting)
                    best[place, number] = min(best[place, number], seconds)
        return {"seconds": best.mean(axis=1).tolist()}


def _seconds(graph: GraphIndex, query: Floats, groups: int, candidates: int, length: int) -> float:
    started = time.perf_counter()
    graph.search(query, NEIGHBOURS, length=length, groups=groups, candidates=candidates)
    return time.perf_counter() - started
