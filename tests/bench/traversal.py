"""`traversal`: searches a graph of neighbours on a throttled device, with several groups of candidates under way
(Falcon; Jiang's thesis, chapter 7).

Best-first search evaluates one candidate after the other. Delayed synchronisation launches up to `groups` groups of up
to `candidates` candidates, and processes only the results of the earliest group before it launches the next one.
"""

from __future__ import annotations

import heapq
import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.figures import Column, Figure, tabulate
from bench.options import NewFolder, Otherwise, Output, benchmark, stated
from bench.process import measure, processor, say
from bench.vectors import NEIGHBOURS, VectorSet
from bench.vectors import recall as recall_of
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.cpu import LimitedDevice
from edge.errors import EdgeError
from edge.ivf.plan import probe
from edge.ivf.scan import exact_scores
from edge.link import Lane, Ticket
from edge.models.registry import models_dir

_PROCESS_MEMORY = 8 << 30
_LONGEST = 1024
"""The longest queue of results that is tried to reach the recall."""

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Candidates of a group in synchronous search, which has one group under way."""

_GROUPS, _CANDIDATES = range(2, 8), range(1, 5)
"""Groups under way and candidates of each, as in the source's figure of delayed synchronization."""

_QUEUE = 100
"""Length of the queue while the graph is built (`efConstruction`)."""

Setting = tuple[int, int, int]
"""Groups under way, candidates of a group, and the length of the queue of results."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Vectors [n, dim], the neighbours of each [n, degree] (-1 behind the last one), and the vertex of entry."""

    vectors: npt.NDArray[np.float32]
    neighbours: npt.NDArray[np.int32]
    entry: int

    @property
    def row_nbytes(self) -> int:
        return 4 * (self.vectors.shape[1] + 1 + self.neighbours.shape[1])

    @property
    def nbytes(self) -> int:
        return len(self.vectors) * self.row_nbytes

    def search(self, query: npt.NDArray[np.float32], setting: Setting, link: Lane) -> tuple[list[int], int, int]:
        """The nearest vertices of a query [dim], the candidates whose neighbours were requested, and the rows requested
        over the link (algorithm 2). One group of one candidate is best-first search.

        The printed algorithm does not end if no candidate qualifies while groups may still be launched, and does not
        shorten its results. Both faults are corrected here."""
        groups, candidates, length = setting
        seen = {self.entry}
        waiting: list[tuple[float, int]] = []
        results: list[tuple[float, int]] = []
        flying: deque[tuple[Sequence[int], Ticket, npt.NDArray[np.float32]]] = deque()
        hops = rows = 0

        def launch(vertices: Sequence[int]) -> None:
            nonlocal rows
            rows += len(vertices)
            buffer = np.empty((len(vertices), self.vectors.shape[1]), np.float32)
            nbytes = len(vertices) * self.row_nbytes
            flying.append((vertices, link.submit("rows", self._gather(vertices, buffer), nbytes, wake=False), buffer))

        def take() -> None:
            vertices, ticket, buffer = flying.popleft()
            ticket.wait()
            for distance, vertex in zip((-exact_scores(buffer, query)).tolist(), vertices, strict=True):
                if len(results) == length:
                    if (distance, vertex) >= results[-1]:
                        continue
                    results.pop()
                insort(results, (distance, vertex))
                heapq.heappush(waiting, (distance, vertex))

        launch([self.entry])
        take()
        while True:
            while len(flying) < groups:
                group: list[int] = []
                while waiting and len(group) < candidates and waiting[0] <= results[-1]:
                    group.append(heapq.heappop(waiting)[1])
                if not group:
                    break
                hops += len(group)
                near = self.neighbours[group].ravel().tolist()
                fresh = [vertex for vertex in dict.fromkeys(near) if vertex >= 0 and vertex not in seen]
                seen.update(fresh)
                launch(fresh)
            if not flying:
                return [vertex for _, vertex in results[:NEIGHBOURS]], hops, rows
            take()

    def _gather(self, vertices: Sequence[int], buffer: npt.NDArray[np.float32]) -> Callable[[], int]:
        def gather() -> int:
            self.vectors.take(vertices, axis=0, out=buffer, mode="clip")
            return len(vertices) * self.row_nbytes

        return gather


def hnsw(dim: int, degree: int) -> Any:
    """A graph of faiss without vertices. One thread builds it, so that it is always the same."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(dim, degree // 2, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _QUEUE
    return index


def built(vectors: npt.NDArray[np.float32], degree: int) -> Graph:
    """The base level of faiss's HNSW graph, by inner product."""
    import faiss

    index = hnsw(vectors.shape[1], degree)
    index.add(vectors)
    starts = faiss.vector_to_array(index.hnsw.offsets)[:-1].astype(np.int64)
    numbers = faiss.vector_to_array(index.hnsw.neighbors)
    return Graph(vectors, numbers[starts[:, None] + np.arange(degree)], int(index.hnsw.entry_point))


@benchmark
def traversal(
    *,
    rows: Annotated[int, "Made-up vectors."] = 30_000,
    queries: int = 60,
    degree: Annotated[int, "Most neighbours of a vertex; even."] = 32,
    recall: Annotated[float, "Recall@10 that all reach where times are compared."] = 0.99,
    latency: Annotated[float, "Seconds of a request to the device."] = 1e-4,
    bandwidth: Annotated[str, "Of the link to the device, a second."] = "1GB",
    depth: Annotated[int, "Requests to the device whose latencies overlap."] = 64,
    rounds: Annotated[int, "Each query's fastest round counts."] = 3,
    centroids: Annotated[str, "Numbers of lists, with commas; instead, choose a query's lists by a graph, too."] = "",
    work_dir: Annotated[
        NewFolder, "Where vectors and graph are made and kept.", Otherwise(lambda: models_dir() / "bench" / "traversal")
    ],
    output: Output,
) -> None:
    """Search a graph on a throttled device (`limited`) with several groups of candidates in flight (Falcon)."""
    if centroids:
        found = {f"{count:,} lists": lists_chosen(int(count), queries, degree, recall, rounds, work_dir)
                 for count in map(int, centroids.split(","))}  # fmt: skip
        return output.put(found, tabulate(found, _CHOICE, f"{_PROBED} lists of a query"), stated({"recall": recall}))
    own = work_dir / f"made-{rows}-{queries}"
    vectors = VectorSet.made(own / "vectors", rows=rows, queries=queries, base=None)
    task: dict[str, Any] = {
        "name": "the graph", "set": str(vectors.folder), "graph": str(own / f"degree-{degree}.npz"), "degree": degree,
        "recall": recall, "latency": latency, "depth": depth, "rounds": rounds,
        "bandwidth": float(parse_size(bandwidth)),
    }  # fmt: skip
    say(f"queues for a recall of {recall}")
    settings = [(1, candidates) for candidates in _BATCHES]
    settings += [(groups, candidates) for candidates in _CANDIDATES for groups in _GROUPS]
    reached = [row for row in _run(task, action="lengths", settings=settings)["rows"] if row is not None]
    if not any(row["groups"] > 1 for row in reached) or (reached[0]["groups"], reached[0]["candidates"]) != (1, 1):
        raise EdgeError(f"this graph does not reach a recall of {recall}; ask for less, or for a higher --degree")
    say(f"times with a latency of {latency * 1e6:.0f} microseconds")
    timed = _run(task, action="timed", settings=[(row["groups"], row["candidates"], row["length"]) for row in reached])
    for row, seconds in zip(reached, timed["seconds"], strict=True):
        row["seconds"] = seconds
    chosen = best_of(reached)
    report: dict[str, Any] = {
        "conditions": {
            "device": "limited (throttled test device)", "vectors": vectors.kind, "rows": vectors.rows,
            "dim": vectors.dim, "queries": len(vectors.queries), "degree": degree, "latency_s": latency,
            "bandwidth": task["bandwidth"], "depth": depth, "recall": recall, "rounds": rounds,
            "processor": processor(),
        },
        "at_equal_recall": reached, "chosen": chosen,
        "speedup": {
            name: chosen[name]["seconds"] / chosen["delayed"]["seconds"] for name in ("best-first", "synchronous")
        },
    }  # fmt: skip
    gain = report["speedup"]
    shown = (
        f"THROTTLED TEST DEVICE (limited)\n{stated(report['conditions'])}\ndelayed synchronisation is "
        f"{gain['best-first']:.2f} times as fast as best-first search and {gain['synchronous']:.2f} times as fast as "
        "the fastest search with one group under way"
    )
    output.put(report, figures(report), shown)


_PROBED = 32
"""Lists that a search probes."""

_CHOICE = {
    "whole": Column("all compared", "s"), "graph": Column("by a graph", "s"), "recall": Column("of the nearest", "%"),
    "built": Column("the graph is made", "s"), "repaid": Column("searches that repay it", ""),
}  # fmt: skip


def lists_chosen(count: int, queries: int, degree: int, recall: float, rounds: int, work_dir: Path) -> dict[str, Any]:
    """Seconds of the processor to choose the lists of a query among so many: by comparing all, as the product does, and
    by a graph over their centroids, with the shortest queue that finds the share `recall` of the nearest."""
    vectors = VectorSet.made(work_dir / f"centroids-{count}-{queries}", rows=count, queries=queries, base=None)
    rows, asked = np.array(vectors.mapped()), vectors.queries
    index = hnsw(vectors.dim, degree)
    nearest = probe(asked, rows, _PROBED)

    def worked(do: Callable[[Any], object], items: Sequence[Any]) -> float:
        began = time.process_time()
        for item in items:
            do(item)
        return (time.process_time() - began) / len(items)

    def seconds(choose: Callable[[Any], object]) -> float:
        return min(worked(choose, np.split(asked, len(asked))) for _ in range(rounds))

    built_s = worked(index.add, [rows])
    for length in (_PROBED << step for step in range(8)):
        index.hnsw.efSearch = length
        reached = recall_of(index.search(asked, _PROBED)[1].tolist(), nearest)
        if reached >= recall:
            break
    whole, graph = seconds(lambda one: probe(one, rows, _PROBED)), seconds(lambda one: index.search(one, _PROBED))
    repaid = built_s / (whole - graph) if whole > graph else None
    return {"whole": whole, "graph": graph, "recall": reached, "built": built_s, "repaid": repaid}


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Best-first search, the fastest search with one group under way, and the fastest with several."""
    return {
        "best-first": next(row for row in rows if (row["groups"], row["candidates"]) == (1, 1)),
        "synchronous": min((row for row in rows if row["groups"] == 1), key=lambda row: float(row["seconds"])),
        "delayed": min((row for row in rows if row["groups"] > 1), key=lambda row: float(row["seconds"])),
    }


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    columns = {
        "groups": Column("groups"), "candidates": Column("candidates"), "length": Column("queue"),
        "hops": Column("hops"), "visited": Column("rows"), "seconds": Column("time", "s"),
    }  # fmt: skip
    yield from tabulate(report["chosen"], columns, f"times at a recall of {report['conditions']['recall']}")


def _run(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return measure(work, task | more, threads=1)


def work(task: dict[str, Any]) -> dict[str, Any]:
    return {"lengths": _lengths, "timed": _timed}[task["action"]](task)


@contextmanager
def opened(task: dict[str, Any], **link: float) -> Iterator[tuple[VectorSet, Graph, Lane]]:
    """The task's vectors, their graph, which is built unless it is stored, and the link of a throttled device."""
    vectors, place = VectorSet.stored(Path(task["set"])), Path(task["graph"])
    if place.exists():
        stored = np.load(place)
        graph = Graph(np.array(vectors.mapped()), stored["neighbours"], int(stored["entry"]))
    else:
        graph = built(np.array(vectors.mapped()), task["degree"])
        np.savez(place, neighbours=graph.neighbours, entry=graph.entry)
    device = LimitedDevice(MemoryBudget(_PROCESS_MEMORY), cap=graph.nbytes, **{"bandwidth": math.inf} | link)
    try:
        yield vectors, graph, device.link
    finally:
        device.close()


def counted(graph: Graph, link: Lane, vectors: VectorSet, setting: Setting) -> dict[str, Any]:
    """Hops of a query, rows requested for it, and recall@10 of one setting."""
    found = [graph.search(query, setting, link) for query in vectors.queries]
    count = len(found)
    return {
        **dict(zip(("groups", "candidates", "length"), setting, strict=True)),
        "recall": recall_of([labels for labels, _, _ in found], vectors.truth),
        "hops": sum(hops for _, hops, _ in found) / count, "visited": sum(rows for _, _, rows in found) / count,
    }  # fmt: skip


def _lengths(task: dict[str, Any]) -> dict[str, Any]:
    """For each setting, the figures with the shortest queue that reaches the task's recall; None if none does."""
    with opened(task) as (vectors, graph, link):
        found = []
        for size in task["settings"]:
            reached, low, high = None, NEIGHBOURS, NEIGHBOURS
            while reached is None and high <= _LONGEST:
                row = counted(graph, link, vectors, (*size, high))
                if row["recall"] >= task["recall"]:
                    reached = row
                else:
                    low, high = high + 1, 2 * high
            while reached is not None and low < reached["length"]:
                row = counted(graph, link, vectors, (*size, (low + reached["length"]) // 2))
                if row["recall"] >= task["recall"]:
                    reached = row
                else:
                    low = row["length"] + 1
            found.append(reached)
        return {"rows": found}


def _timed(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a query with each setting: the mean over the queries, which take turns, of each one's fastest."""
    with opened(task, **{name: task[name] for name in ("bandwidth", "latency", "depth")}) as (vectors, graph, link):
        best = np.full((len(task["settings"]), len(vectors.queries)), np.inf)
        for _ in range(task["rounds"]):
            for number, query in enumerate(vectors.queries):
                for place, setting in enumerate(task["settings"]):
                    started = time.perf_counter()
                    graph.search(query, tuple(setting), link)
                    best[place, number] = min(best[place, number], time.perf_counter() - started)
        return {"seconds": best.mean(axis=1).tolist()}
