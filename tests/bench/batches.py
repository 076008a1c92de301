"""`batches`: searches of a slow place by one to eight clients, one by one and as batches (TeleRAG)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from bench.figures import Figure, higher, lower, tabulate
from bench.load import drawn
from bench.options import Base, Count, Output, Rounds, VectorsDir, benchmark, numbers, stated
from bench.placement import Load, index_of, opened_searcher
from bench.process import measure, say
from bench.vectors import VectorSet
from edge.config import parse_size
from edge.errors import EdgeError
from edge.trace import Trace

_ARMS = ("apart", "together")


@benchmark
def batches(
    *,
    clients: Annotated[Sequence[int], numbers(), "Numbers of clients that wait for their results."] = (1, 2, 4, 8),
    searches: Annotated[Count, "Of each measurement."] = 160,
    memory: Annotated[str, "For lists and the work of searches."] = "64MB",
    bandwidth: Annotated[str, "Of the place of the lists, per second."] = "50MB",
    rows: Count = 60_000,
    list_rows: Annotated[Count, "Vectors per list that training aims at."] = 256,
    nprobe: Count = 16,
    topics: Count = 300,
    exponent: Annotated[float, "Of Zipf's law, by which topics are chosen."] = 1.0,
    rounds: Rounds = 1,
    base: Base = None,
    work_dir: VectorsDir = Path("bench"),
    output: Output,
) -> None:
    """Search lists on a slow place by several clients in turn, with and without batches."""
    made, folder = index_of(work_dir, rows, base, topics, list_rows)
    common = {
        "set": str(made.folder), "folder": str(folder), "searches": searches, "memory": parse_size(memory),
        "bandwidth": parse_size(bandwidth), "nprobe": nprobe, "exponent": exponent,
    }  # fmt: skip
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _ in range(rounds):
        for number in clients:
            for arm in _ARMS:
                say(f"{number} clients, {arm}")
                task = {**common, "clients": number, "name": arm, "together": arm == "together"}
                runs = found.setdefault(f"{number} clients", {name: [] for name in _ARMS})
                runs[arm].append(measure(work, task, threads=1))
    columns = {
        "rate": higher("searches", "/s"), "p50": lower("p50", "s"), "p95": lower("p95", "s"),
        "read": lower("read for a search", "B"),
    }  # fmt: skip
    conditions = {**common, "rows": rows, "kind": made.kind, "topics": topics, "set": None, "folder": None}
    figures: list[Figure] = []
    for count, arms in found.items():
        rows_of = {arm: {key: [run[key] for run in runs] for key in columns} for arm, runs in arms.items()}
        figures += tabulate(rows_of, columns, table=count)
    results = [run.pop("found") for arms in found.values() for runs in arms.values() for run in runs]
    output.put({"conditions": conditions, "clients": found}, figures, stated(conditions))
    if any(one != results[0] for one in results):
        raise EdgeError("batches changed what was found")


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs one arm with one number of clients."""
    centres = VectorSet.stored(Path(task["set"])).queries
    count = task["searches"]
    drawing = drawn(1.0, 10.0 * count, {"search": 1}, len(centres), task["exponent"])
    load = [(0.0, one.topic, one.number) for one in drawing[: 2 * count]]
    trace = Trace()
    with opened_searcher(task, trace) as (searcher, snapshot, _):
        if not task["together"]:
            searcher._must_read = lambda *_: False  # type: ignore[method-assign]
        run = Load(searcher, snapshot, centres, task["nprobe"], None)
        run(load[:count], task["clients"])
        before, started = trace.snapshot(), time.perf_counter()
        measured = run(load[count:], task["clients"])
        seconds = time.perf_counter() - started
        read = trace.since(before).get("lists.bytes", 0) / count
    alone = measured.pop("alone")
    return {
        "found": measured["found"], "rate": count / seconds, "p50": alone[count // 2], "p95": alone[count * 95 // 100],
        "read": read,
    }  # fmt: skip
