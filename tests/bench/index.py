"""`index`: compares this index under a memory limit with faiss (in memory, on disk, mapped), usearch on
the same vectors, and measures how much of its reads lookahead hides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench import index_peers
from bench.figures import Column, Figure, tabulate
from bench.index_peers import cold_and_warm
from bench.options import Base, Names, Output, Threads, VectorsDir, benchmark, stated
from bench.process import drop_page_cache, in_turn, kept, measure, processor, say
from bench.vectors import NEIGHBOURS, Floats, VectorSet, opened_index
from bench.vectors import recall as recall_of
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.config import format_size, parse_size
from edge.devices.cpu import LimitedDevice
from edge.ivf.index import IndexOptions, VectorIndex
from edge.ivf.plan import choose_nprobe
from edge.trace import Trace

_SYSTEMS = ("edge", "faiss-ram", "faiss-ondisk", "faiss-mmap", "usearch")
_LOOKAHEAD = ("disk", "limited")
_CAP = 64_000_000
"""Memory of the limited device."""

_OVERLAP = 0.75
"""Share of lists in both prediction and query."""


@benchmark
def index(
    *,
    rows: int = 1_000_000,
    base: Base = None,
    memory: Annotated[str, "Limit of the whole process, building included."] = "256MB",
    codec: Annotated[str, click.Choice(["auto", "flat", "sq8", "pq"])] = "auto",
    recall: Annotated[float, "Recall@10 that each system is set to reach."] = 0.95,
    nprobe: Annotated[int | None, "Lists to probe; from the index's own measurement if not given."] = None,
    queries: Annotated[int, "Queries: half warm up, half are measured."] = 400,
    cold: Annotated[int, "Queries from a cold disk, with nothing in memory."] = 20,
    threads: Annotated[Threads, "Threads of building, and of peers' searches."] = 2,
    systems: Annotated[Sequence[str], Names(_SYSTEMS)] = _SYSTEMS,
    churn: Annotated[
        float,
        "Share of the rows that are deleted and added; an index of the same rows, built at once, is measured, too.",
    ] = 0.0,
    lookahead: Annotated[Sequence[str], Names(_LOOKAHEAD), "Devices to show lookahead on."] = _LOOKAHEAD,
    window: Annotated[float, "Seconds between prediction and search."] = 0.5,
    bandwidth: Annotated[str, "Bytes per second of the limited device's link."] = "1GB",
    work_dir: VectorsDir,
    output: Output,
) -> None:
    """Search a million vectors within a limit, cold and warm, beside the peers."""
    say("vectors and exact answers")
    vectors = VectorSet.made(work_dir / "vectors", rows=rows, queries=queries, base=base)
    task: dict[str, Any] = {
        "set": str(vectors.folder), "index": str(work_dir / "own"), "peers": str(work_dir / "peers"),
        "memory": parse_size(memory), "codec": codec, "recall": recall, "nprobe": nprobe, "cold": cold,
        "threads": threads,
    }  # fmt: skip
    built = _built(work, work_dir / "own", task, "edge")
    task |= {"lists": built["lists"], "codec_used": built["codec"]}
    own = _run(work, task | {"action": "search", "name": "edge"})
    task["nprobe"] = own["nprobe"]

    def searched(name: str) -> dict[str, Any]:
        if name == "edge":
            return own
        _built(index_peers.work, work_dir / "peers", task, name.split("-")[0])
        return _run(index_peers.work, task | {"action": "search", "name": name, "system": name})

    reports, left_out = in_turn(1, systems, searched)
    limited = {"cap": _CAP, "bandwidth": float(parse_size(bandwidth))}
    ahead = task | {"action": "lookahead", "window": window, "watch": 0.05}
    windows = {
        device: _run(work, ahead | {"name": f"lookahead on {device}"} | (limited if device == "limited" else {}))
        for device in lookahead
    }
    changed = _churn(task, vectors, work_dir, int(rows * churn)) if churn else None
    result = {
        "conditions": {
            "rows": rows, "dim": vectors.dim, "vectors": vectors.kind, "queries": queries, "cold_queries": cold,
            "limit": parse_size(memory), "codec": built["codec"], "lists": built["lists"], "nprobe": own["nprobe"],
            "threads": threads, "processor": processor(), "window": window, **limited,
        },
        "built": built,
        "systems": {name: _row(found, vectors.truth) for name, (found,) in reports.items()},
        "missing": left_out,
        "identical_to_faiss": _same(own, *reports.get("faiss-ram", [None])),
        "lookahead": {device: _window(report) for device, report in windows.items()},
        "churn": changed,
    }  # fmt: skip
    held = max(own["peak_resident"], built["peak_resident"])
    output.put(result, figures(result), _described(result), left_out.values(), held=held, limit=parse_size(memory))


def _run(run: Any, task: dict[str, Any]) -> dict[str, Any]:
    say(f"{task['action']}: {task['name']}")
    return measure(run, task, threads=task["threads"])


def _built(run: Any, folder: Path, task: dict[str, Any], name: str) -> dict[str, Any]:
    """The report of building an index. An index that was built before is not built again; its stored report is read."""
    task = task | {"action": "build", "name": name, "system": name}
    return kept(folder / f"built-{name}.json", lambda: _run(run, task))


def _churn(task: dict[str, Any], vectors: VectorSet, folder: Path, changed: int) -> dict[str, Any]:
    """Compares an index after deletions and additions with an index built at once of the same rows."""
    truth = vectors.neighbours(changed)
    rows = {}
    for name in ("fresh", "changed"):
        own = task | {"index": str(folder / name), "nprobe": None, "cold": 0, "changed": changed}
        own |= {"first": changed} if name == "fresh" else {"end": vectors.rows - changed}
        _built(work, folder / name, own, name)
        if name == "changed":
            kept(folder / name / "done.json", lambda own=own: _run(work, own | {"action": "change", "name": "changed"}))  # type: ignore[misc]
        rows[name] = _row(_run(work, own | {"action": "search", "name": name}), truth)
    return {"rows": changed, **rows}


def _row(report: dict[str, Any], truth: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {
        "recall": recall_of(report["ids"], truth),
        **{f"{name}_p{p}": _percentile(report[name], p) for name in ("cold", "warm") for p in (50, 95)},
        "peak_resident": report["peak_resident"],
        "peak_with_files": report["peak_with_files"],
        "nbytes": report["nbytes"],
        "setting": report.get("setting", report.get("nprobe")),
    }


def _percentile(seconds: list[float], percent: int) -> float | None:
    return float(np.percentile(seconds, percent)) if seconds else None


def _same(own: dict[str, Any], peer: dict[str, Any] | None) -> float | None:
    """The share of queries with the same ids in the same order; None without the peer."""
    if peer is None:
        return None
    return float(statistics.mean(a == b for a, b in zip(own["ids"], peer["ids"], strict=True)))


def _window(report: dict[str, Any]) -> dict[str, Any]:
    means = {f"{way}_stall": statistics.mean(stalls) for way, stalls in report["stall"].items()}
    times = {f"{way}_p50": statistics.median(seconds) for way, seconds in report["seconds"].items()}
    return means | times | {
        "stall_ratio": means["lookahead_stall"] / max(1e-9, means["demand_stall"]),
        "overlap": report["overlap"],
        "fetched": statistics.mean(report["fetched"]),
        "same": report["same"],
        "within": report["within"],
        "peak_resident": report["peak_resident"],
    }  # fmt: skip


def figures(result: dict[str, Any]) -> Iterator[Figure]:
    built = {"edge": result["built"]}
    columns = {"seconds": Column("time", "s"), "peak_resident": Column("peak", "B"), "nbytes": Column("on disk", "B")}
    yield from tabulate(built, columns, "building")
    searched = {
        "recall": Column("recall@10"),
        **{f"{name}_p{p}": Column(f"{name} p{p}", "s") for name in ("cold", "warm") for p in (50, 95)},
        "peak_resident": Column("peak", "B"), "peak_with_files": Column("with files", "B"),
        "nbytes": Column("on disk", "B"), "setting": Column("setting"),
    }  # fmt: skip
    yield from tabulate(result["systems"], searched, "searching")
    changed = {name: row for name, row in (result["churn"] or {}).items() if name != "rows"}
    kept = ("recall", "warm_p50", "setting")
    yield from tabulate(changed, {key: searched[key] for key in kept}, "after deletions and additions, and built anew")
    windows = {
        "demand_stall": Column("waits on demand", "s"), "lookahead_stall": Column("waits with lookahead", "s"),
        "demand_p50": Column("search on demand p50", "s"), "lookahead_p50": Column("search with lookahead p50", "s"),
    }  # fmt: skip
    yield from tabulate(result["lookahead"], windows, "lookahead by device")


def _described(result: dict[str, Any]) -> str:
    """The sentences above the tables of figures."""
    lines = [
        stated(result["conditions"]),
        "one query at a time; cold: page cache dropped and index opened anew before each query; warm: files read "
        "before, half of the queries after the others",
        *result["missing"].values(),
    ]
    if result["identical_to_faiss"] is not None:
        lines.append(f"same ids in the same order as faiss on the same lists: {result['identical_to_faiss']:.1%}")
    if result["churn"]:
        lines.append(f"{result['churn']['rows']:,} rows were deleted and as many added")
    for device, row in result["lookahead"].items():
        lines.append(
            f"lookahead on {device}: overlap {row['overlap']:.0%}, {format_size(int(row['fetched']))} fetched; waits "
            f"{row['stall_ratio']:.0%} of those on demand; results {'identical' if row['same'] else 'DIFFER'}; budget "
            f"{'kept' if row['within'] else 'EXCEEDED'}"
        )
    return "\n".join(lines)


def work(task: dict[str, Any]) -> dict[str, Any]:
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
    trace = Trace()
    budget = MemoryBudget(task["memory"])
    fast = None
    if task.get("cap"):
        fast = LimitedDevice(budget, cap=task["cap"], bandwidth=task["bandwidth"], trace=trace)
    dim, options = VectorSet.stored(Path(task["set"])).dim, IndexOptions(codec=task["codec"])
    try:
        with opened_index(Path(task["index"]), dim, budget, trace=trace, place=fast, options=options) as (
            own,
            database,
        ):
            yield Opened(database, own, budget, trace)
    finally:
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
    with opened(task) as our, our.database.read() as db:
        nprobe = task["nprobe"] or choose_nprobe(our.index.snapshot(db), task["recall"])
        nbytes = our.index.status(db).nbytes

    @contextmanager
    def searching() -> Iterator[index_peers.Search]:
        with opened(task) as our, our.database.read() as db:
            our.index.snapshot(db)
            yield lambda query: our.index.search(db, query[None], NEIGHBOURS, nprobe=nprobe).ids[0]

    return cold_and_warm(task, searching, [Path(task["index"])]) | {"nprobe": nprobe, "nbytes": nbytes}


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
            low, high = (length, high) if share > _OVERLAP else (low, length)
    return made.astype(np.float32), share


def _nearest(queries: Floats, centroids: Floats, nprobe: int) -> list[list[int]]:
    return [row.tolist() for row in np.argsort(-(queries @ centroids.T), axis=1)[:, :nprobe]]
