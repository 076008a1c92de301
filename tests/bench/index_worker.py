"""Measures this index: building it, searching it cold and warm, and the waiting that lookahead hides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.process import drop_page_cache, fill_page_cache
from bench.vectors import NEIGHBOURS, Floats, VectorSet
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.ivf.index import IndexOptions, VectorIndex
from edge.ivf.plan import choose_nprobe
from edge.trace import Trace


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `action`: build, change, search or lookahead."""
    return {"build": _build, "change": _change, "search": _search, "lookahead": _lookahead}[task["action"]](task)


@dataclass(frozen=True, slots=True)
class Opened:
    """An index under a limit of its own."""

    database: Database
    index: VectorIndex
    budget: MemoryBudget
    trace: Trace


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[Opened]:
    """Opens the task's index under its limit. If the task has a `cap`, a limited device is used beside the host."""
    folder = Path(task["index"])
    trace = Trace()
    budget = MemoryBudget(task["memory"])
    fast = None
    if task.get("cap"):
        fast = LimitedDevice(budget, cap=task["cap"], bandwidth=task["bandwidth"], trace=trace)
    database = Database(folder / "index.db", VectorIndex.migrations(), budget=budget)
    options = IndexOptions(codec=task["codec"])
    dim = VectorSet.stored(Path(task["set"])).dim
    try:
        with VectorIndex(folder, dim, budget=budget, trace=trace, fast=fast, options=options) as index:
            yield Opened(database, index, budget, trace)
    finally:
        database.close()
        if fast is not None:
            fast.close()


def _build(task: dict[str, Any]) -> dict[str, Any]:
    """Builds an index of all rows, or of the rows from `first` to `end`."""
    started = time.perf_counter()
    with opened(task) as our:
        _add(our, task, task.get("first", 0), task.get("end"))
        our.index.maintain(our.database.write, full=True)
        with our.database.read() as db:
            status = our.index.status(db)
    return {
        "seconds": time.perf_counter() - started, "rows": status.rows, "lists": status.lists, "codec": status.codec,
        "nbytes": status.nbytes, "recall": status.recall,
    }  # fmt: skip


def _change(task: dict[str, Any]) -> dict[str, Any]:
    """Deletes the first `changed` rows and adds as many at the end, with the automatic maintenance."""
    changed, rows = task["changed"], VectorSet.stored(Path(task["set"])).rows
    started = time.perf_counter()
    with opened(task) as our:
        with our.database.write() as db:
            our.index.delete(db, np.arange(changed))
        _add(our, task, rows - changed, rows, maintain=True)
        with our.database.read() as db:
            status = our.index.status(db)
    return {"seconds": time.perf_counter() - started, "rows": status.rows, "lists": status.lists}


def _add(our: Opened, task: dict[str, Any], first: int, end: int | None, *, maintain: bool = False) -> None:
    for start, rows in VectorSet.stored(Path(task["set"])).blocks(first, end):
        with our.budget.reserve("vectors", rows.nbytes), our.database.write() as db:
            our.index.add(db, np.arange(start, start + len(rows)), rows)
        if maintain:
            our.index.maintain(our.database.write)


def _search(task: dict[str, Any]) -> dict[str, Any]:
    queries = VectorSet.stored(Path(task["set"])).queries
    half = len(queries) // 2
    cold: list[float] = []
    with opened(task) as our, our.database.read() as db:
        nprobe = task["nprobe"] or choose_nprobe(our.index.snapshot(db), task["recall"])
        our.index.search(db, queries[:1], NEIGHBOURS, nprobe=1)  # libraries are loaded by the first search
    for query in queries[: task["cold"]]:
        with opened(task) as our, our.database.read() as db:
            our.index.snapshot(db)
            drop_page_cache(Path(task["index"]))
            started = time.perf_counter()
            our.index.search(db, query[None], NEIGHBOURS, nprobe=nprobe)
            cold.append(time.perf_counter() - started)
    with opened(task) as our, our.database.read() as db:
        index = our.index
        fill_page_cache(Path(task["index"]))
        for query in queries[:half]:
            index.search(db, query[None], NEIGHBOURS, nprobe=nprobe)
        before = our.trace.snapshot()
        warm, ids = [], []
        for query in queries[half:]:
            started = time.perf_counter()
            found = index.search(db, query[None], NEIGHBOURS, nprobe=nprobe)
            warm.append(time.perf_counter() - started)
            ids.append(found.ids[0].tolist())
        counted = our.trace.since(before)
        ids = [
            index.search(db, query[None], NEIGHBOURS, nprobe=nprobe).ids[0].tolist() for query in queries[:half]
        ] + ids
        status = index.status(db)
        held = our.budget.holders()
    return {
        "cold": cold, "warm": warm, "ids": ids, "nprobe": nprobe, "lists": status.lists, "codec": status.codec,
        "nbytes": status.nbytes, "hits": counted["lists.hits"],
        "misses": counted.get("lists.misses", 0), "read": counted.get("disk.bytes", 0), "held": held,
    }  # fmt: skip


def _lookahead(task: dict[str, Any]) -> dict[str, Any]:
    """Measures on-demand reads and lookahead in turn. Every search starts with a cold page cache and no resident
    list."""
    queries = VectorSet.stored(Path(task["set"])).queries[: task["cold"]]
    nprobe = task["nprobe"]
    predictions, overlap = _predictions(task, queries, nprobe)
    stalls: dict[str, list[float]] = {"demand": [], "lookahead": []}
    seconds: dict[str, list[float]] = {"demand": [], "lookahead": []}
    same, within, fetched = True, True, []
    for query, prediction in zip(queries, predictions, strict=True):
        found = {}
        for way in ("demand", "lookahead"):
            with opened(task) as our, our.database.read() as db:
                our.index.snapshot(db)
                drop_page_cache(Path(task["index"]))
                ahead = None
                if way == "lookahead":
                    ahead = our.index.lookahead(db, prediction[None], seconds=task["window"])
                    time.sleep(task["window"])
                before = _stalled(our.trace)
                started = time.perf_counter()
                found[way] = our.index.search(db, query[None], NEIGHBOURS, nprobe=nprobe, window=ahead)
                seconds[way].append(time.perf_counter() - started)
                stalls[way].append(_stalled(our.trace) - before)
                within &= our.budget.used <= our.budget.limit
                if ahead is not None:
                    fetched.append(ahead.fetched)
                    within &= ahead.asked <= ahead.nbytes
                    ahead.cancel()
        same &= found["demand"].ids.tolist() == found["lookahead"].ids.tolist()
        same &= found["demand"].scores.tolist() == found["lookahead"].scores.tolist()
    return {
        "overlap": overlap, "stall": stalls, "seconds": seconds, "same": same, "within": within, "fetched": fetched,
        "nprobe": nprobe,
    }  # fmt: skip


def _stalled(trace: Trace) -> float:
    """The seconds that searches have waited for bytes, on all links."""
    counters = trace.snapshot()
    return counters.get("disk.stall_s", 0.0) + counters.get("link.stall_s", 0.0)


def _predictions(task: dict[str, Any], queries: Floats, nprobe: int) -> tuple[Floats, float]:
    """A prediction for each query, made by adding noise. The noise is just long enough that prediction and query have
    the wanted share of their lists in common, which is returned, too."""
    random = np.random.default_rng(0)
    with opened(task) as our, our.database.read() as db:
        centroids = our.index.snapshot(db).centroids
        our.index.search(db, queries[:1], NEIGHBOURS, nprobe=1)  # libraries are loaded by the first search
        one = random.integers(0, len(centroids), len(queries))
        other = (one + random.integers(1, max(2, len(centroids)), len(queries))) % len(centroids)
        noise = centroids[one] - centroids[other]
        noise /= np.maximum(np.linalg.norm(noise, axis=1, keepdims=True), 1e-6)
        lists = _nearest(queries, centroids, nprobe)
        low, high = 0.0, 2.0
        for _ in range(12):
            length = (low + high) / 2
            made = queries + length * noise
            made /= np.linalg.norm(made, axis=1, keepdims=True)
            near = _nearest(made, centroids, nprobe)
            share = float(np.mean([len(set(a) & set(b)) / nprobe for a, b in zip(lists, near, strict=True)]))
            low, high = (length, high) if share > task["overlap"] else (low, length)
    return made.astype(np.float32), share


def _nearest(queries: Floats, centroids: Floats, nprobe: int) -> list[list[int]]:
    return [row.tolist() for row in np.argsort(-(queries @ centroids.T), axis=1)[:, :nprobe]]
