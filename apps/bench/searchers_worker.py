"""Searches one index with several numbers of searchers, and compares their results with those of the host alone."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.bench.process import serve
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.searchers import SearchersDevice
from edge.ivf.base import RESCORE
from edge.ivf.index import IndexOptions, VectorIndex
from edge.planner.searchers import queue_length
from edge.trace import Trace

_MEMORY = parse_size("4GB")
_DIM = 64
_CENTRES = 200
_SPREAD = 0.5
_LIST_ROWS = 312
_PROBED = 24
_RESULTS = 10
_ADDED = 20_000

Floats = npt.NDArray[np.float32]


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Builds an index of made-up vectors, and searches it by the host and then by each number of searchers. Every
    query is asked twice; the second time is measured, when the searchers hold the lists."""
    random = np.random.default_rng(3)
    centres = random.standard_normal((_CENTRES, _DIM), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        budget = MemoryBudget(_MEMORY)
        options = IndexOptions(codec=task["codec"], flat_limit=0, list_rows=_LIST_ROWS)
        database = Database(Path(folder) / "index.db", VectorIndex.migrations(), budget=budget)
        with database:
            with VectorIndex(Path(folder) / "segments", _DIM, budget=budget, options=options) as index:
                for start in range(0, task["rows"], _ADDED):
                    ids = np.arange(start, min(task["rows"], start + _ADDED))
                    with database.write() as db:
                        index.add(db, ids, _near(centres, len(ids), random))
                index.maintain(database.write, full=True)
                with database.read() as db:
                    nbytes = index.status(db).nbytes
            queries = _near(centres, task["queries"], random)
            expected: list[tuple[bytes, bytes]] = []
            rows = []
            for count in (0, *task["counts"]):  # 0 stands for the host
                row, found = _run(Path(folder) / "segments", database, budget, options, queries, count, nbytes, task)
                expected = expected or found
                rows.append({"codec": task["codec"], **row, "identical": found == expected})
    return {"rows": rows}


def _run(
    segments: Path,
    database: Database,
    budget: MemoryBudget,
    options: IndexOptions,
    queries: Floats,
    count: int,
    nbytes: int,
    task: dict[str, Any],
) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    trace = Trace()
    kept = _RESULTS if task["codec"] == "flat" else RESCORE * _RESULTS
    length = queue_length(kept, count) if count else kept
    devices = [SearchersDevice(budget, of=task["of"], count=count, cap=nbytes, trace=trace)] if count else []
    try:
        with VectorIndex(
            segments, _DIM, budget=budget, trace=trace, options=options, places=devices, threads=1
        ) as index, database.read() as db:  # fmt: skip

            def search(query: Floats) -> tuple[bytes, bytes]:
                found = index.search(db, query[None], _RESULTS, nprobe=_PROBED)
                return found.ids.tobytes(), found.scores.tobytes()

            first = [search(query) for query in queries]
            before = trace.snapshot()
            seconds, again = [], []
            for query in queries:
                started = time.perf_counter()
                again.append(search(query))
                seconds.append(time.perf_counter() - started)
            counted = {name: value - before.get(name, 0) for name, value in trace.snapshot().items()}
    finally:
        for device in devices:
            device.close()
    return {
        "searchers": count, "median_s": statistics.median(seconds), "queue": length,
        "asked": int(counted.get("searchers.asked", 0)), "again": int(counted.get("searchers.again", 0)),
    }, first + again  # fmt: skip


def _near(centres: Floats, count: int, random: np.random.Generator) -> Floats:
    """Unit vectors [count, dim] around random centres."""
    rows = centres[random.integers(len(centres), size=count)]
    rows = rows + _SPREAD * random.standard_normal(rows.shape, np.float32)
    unit: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    serve(work)
