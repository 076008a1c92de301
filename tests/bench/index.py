"""`index`: compares this index under a memory limit with faiss (in memory, on disk, mapped), usearch and
lancedb on the same vectors, and measures how much of its reads lookahead hides."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, base_option, names_option, output_options, vectors_dir_option
from bench.process import measure, processor
from bench.vectors import VectorSet
from bench.vectors import recall as recall_of
from edge.config import format_size, parse_size
from edge.errors import CapabilityError

_OWN = "bench.index_worker"
_PEERS = "bench.index_peers"
_SYSTEMS = ("edge", "faiss-ram", "faiss-ondisk", "faiss-mmap", "usearch", "lancedb")
_LOOKAHEAD = ("disk", "limited")


@click.command("index")
@click.option("--rows", default=1_000_000, show_default=True)
@base_option
@click.option("--memory", default="256MB", show_default=True, help="Limit of the whole process, building included.")
@click.option("--codec", type=click.Choice(["auto", "flat", "sq8", "pq"]), default="auto", show_default=True)
@click.option("--recall", default=0.95, show_default=True, help="Recall@10 that each system is set to reach.")
@click.option("--nprobe", type=int, help="Lists to probe; from the index's own measurement if not given.")
@click.option("--queries", default=400, show_default=True, help="Queries: half warm up, half are measured.")
@click.option("--cold", default=20, show_default=True, help="Queries from a cold disk, with nothing in memory.")
@click.option("--threads", default=2, show_default=True, help="Threads of building, and of peers' searches.")
@names_option("--systems", _SYSTEMS)
@click.option(
    "--churn",
    default=0.0,
    show_default=True,
    help="Share of the rows that are deleted and added; an index of the same rows, built at once, is measured, too.",
)
@names_option("--lookahead", _LOOKAHEAD, help="Devices to show lookahead on.")
@click.option("--window", default=0.5, show_default=True, help="Seconds between prediction and search.")
@click.option("--overlap", default=0.75, show_default=True, help="Share of lists in both prediction and query.")
@click.option("--cap", default="64MB", show_default=True, help="Memory of the limited device.")
@click.option("--bandwidth", default="1GB", show_default=True, help="Bytes per second of the limited device's link.")
@vectors_dir_option
@output_options
def index(
    rows: int,
    base: Path | None,
    memory: str,
    codec: str,
    recall: float,
    nprobe: int | None,
    queries: int,
    cold: int,
    threads: int,
    systems: list[str],
    churn: float,
    lookahead: list[str],
    window: float,
    overlap: float,
    cap: str,
    bandwidth: str,
    work_dir: Path,
    output: Output,
) -> None:
    """Search a million vectors within a limit, cold and warm, beside the peers."""
    click.echo("vectors and exact answers", err=True)
    vectors = VectorSet.made(work_dir / "vectors", rows=rows, queries=queries, base=base)
    task: dict[str, Any] = {
        "set": str(vectors.folder), "index": str(work_dir / "index"), "peers": str(work_dir / "peers"),
        "memory": parse_size(memory), "codec": codec, "recall": recall, "nprobe": nprobe, "cold": cold,
        "threads": threads,
    }  # fmt: skip
    built = _built(_OWN, work_dir / "index", task, "edge")
    task |= {"lists": built["lists"], "codec_used": built["codec"]}
    own = _run(_OWN, task | {"action": "search", "name": "edge"})
    task["nprobe"] = own["nprobe"]
    reports: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for name in systems:
        report = own if name == "edge" else _peer(name, work_dir / "peers", task)
        if isinstance(report, CapabilityError):
            missing[name] = str(report)
            click.echo(f"  missing: {name}: {report}", err=True)
        else:
            reports[name] = report
    limited = {"cap": parse_size(cap), "bandwidth": float(parse_size(bandwidth))}
    windows = {
        device: _run(
            _OWN,
            task | {"action": "lookahead", "name": f"lookahead on {device}", "window": window, "overlap": overlap}
            | {"watch": 0.05} | (limited if device == "limited" else {}),
        )
        for device in lookahead
    }  # fmt: skip
    changed = _churn(task, vectors, work_dir, int(rows * churn)) if churn else None
    result = {
        "conditions": {
            "rows": rows, "dim": vectors.dim, "vectors": vectors.kind, "queries": queries, "cold_queries": cold,
            "limit": parse_size(memory), "codec": built["codec"], "lists": built["lists"], "nprobe": own["nprobe"],
            "threads": threads, "processor": processor(), "window": window, **limited,
        },
        "built": built,
        "systems": {name: _row(report, vectors.truth) for name, report in reports.items()},
        "missing": missing,
        "identical_to_faiss": _same(own, reports.get("faiss-ram")),
        "lookahead": {device: _window(report) for device, report in windows.items()},
        "churn": changed,
    }  # fmt: skip
    notes = [f"{name} was left out: {reason}" for name, reason in missing.items()]
    held = max(own["peak_resident"], built["peak_resident"])
    output.put(result, figures(result), _described(result), notes, held=held, limit=parse_size(memory))


def _run(worker: str, task: dict[str, Any]) -> dict[str, Any]:
    click.echo(f"{task['action']}: {task['name']}", err=True)
    return measure(worker, task, threads=task["threads"])


def _built(worker: str, folder: Path, task: dict[str, Any], name: str) -> dict[str, Any]:
    """The report of building an index. An index that was built before is not built again; its stored report is read."""
    note = folder / f"built-{name}.json"
    if not note.exists():
        folder.mkdir(parents=True, exist_ok=True)
        report = _run(worker, task | {"action": "build", "name": name, "system": name})
        note.write_text(json.dumps(report), encoding="utf-8")
    report = json.loads(note.read_text("utf-8"))
    return dict(report)


def _peer(name: str, folder: Path, task: dict[str, Any]) -> dict[str, Any] | CapabilityError:
    """The measurements of a peer, or the error if it cannot run here."""
    try:
        built = _built(_PEERS, folder, task, name.split("-")[0])
        report = _run(_PEERS, task | {"action": "search", "name": name, "system": name})
    except CapabilityError as error:
        return error
    return report | {"build_s": built["seconds"]}


def _churn(task: dict[str, Any], vectors: VectorSet, folder: Path, changed: int) -> dict[str, Any]:
    """Compares an index after deletions and additions with an index built at once of the same rows."""
    truth = vectors.neighbours(changed)
    rows = {}
    for name in ("fresh", "changed"):
        own = task | {"index": str(folder / name), "nprobe": None, "cold": 0, "changed": changed}
        own |= {"first": changed} if name == "fresh" else {"end": vectors.rows - changed}
        _built(_OWN, folder / name, own, name)
        if name == "changed" and not (folder / name / "done.json").exists():
            (folder / name / "done.json").write_text(
                json.dumps(_run(_OWN, own | {"action": "change", "name": "churn"}))
            )
        rows[name] = _row(_run(_OWN, own | {"action": "search", "name": name}), truth)
    return {"rows": changed, **rows}


def _row(report: dict[str, Any], truth: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {
        "recall": recall_of(report["ids"], truth),
        **{f"{name}_p{p}": _percentile(report[name], p) for name in ("cold", "warm") for p in (50, 95)},
        "peak_resident": report["peak_resident"],
        "peak_with_files": report["peak_with_files"],
        "nbytes": report["nbytes"],
        "setting": report.get("setting", report.get("nprobe")),
        "build_s": report.get("build_s"),
        "hit_rate": report["hits"] / max(1, report["hits"] + report["misses"]) if "hits" in report else None,
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
    times = {f"{way}_p{p}": _percentile(report["seconds"][way], p) for way in report["seconds"] for p in (50, 95)}
    return means | times | {
        "stall_ratio": means["lookahead_stall"] / max(1e-9, means["demand_stall"]),
        "overlap": report["overlap"],
        "fetched": statistics.mean(report["fetched"]),
        "same": report["same"],
        "within": report["within"],
        "peak_resident": report["peak_resident"],
    }  # fmt: skip


def figures(result: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run."""
    built = {"edge": result["built"]}
    columns = {"seconds": lower("time", "s"), "peak_resident": lower("peak", "B"), "nbytes": neither("on disk", "B")}
    yield from tabulate(built, columns, "building")
    searched = {
        "recall": higher("recall@10"),
        **{f"{name}_p{p}": lower(f"{name} p{p}", "s") for name in ("cold", "warm") for p in (50, 95)},
        "peak_resident": lower("peak", "B"), "peak_with_files": neither("with files", "B"),
        "nbytes": lower("on disk", "B"), "setting": neither("setting"),
    }  # fmt: skip
    yield from tabulate(result["systems"], searched, "searching", set(_SYSTEMS) - {"edge"})
    changed = {name: row for name, row in (result["churn"] or {}).items() if name != "rows"}
    kept = ("recall", "warm_p50", "setting")
    yield from tabulate(changed, {key: searched[key] for key in kept}, "after deletions and additions, and built anew")
    windows = {
        "demand_stall": lower("waits on demand", "s"), "lookahead_stall": lower("waits with lookahead", "s"),
        "demand_p50": neither("search on demand p50", "s"), "lookahead_p50": lower("search with lookahead p50", "s"),
    }  # fmt: skip
    yield from tabulate(result["lookahead"], windows, "lookahead by device")


def _described(result: dict[str, Any]) -> str:
    """The sentences above the tables of figures."""
    at, own = result["conditions"], result["systems"].get("edge")
    lines = [
        f"{at['rows']:,} x {at['dim']}: {at['vectors']}",
        f"{at['lists']:,} lists, codec {at['codec']}, nprobe {at['nprobe']}, one query at a time, {at['threads']} "
        f"threads for peers, {at['processor']}; cold: page cache dropped and index opened anew before each of "
        f"{at['cold_queries']} queries; warm: files read before, {at['queries'] // 2} queries after "
        f"{at['queries'] // 2} others",
        *(f"{name} is missing: {reason}" for name, reason in result["missing"].items()),
    ]
    if result["identical_to_faiss"] is not None:
        lines.append(f"same ids in the same order as faiss on the same lists: {result['identical_to_faiss']:.1%}")
    if own and own["hit_rate"] is not None:
        lines.append(f"edge, warm: {own['hit_rate']:.0%} of probed lists were resident")
    if result["churn"]:
        lines.append(f"{result['churn']['rows']:,} rows were deleted and as many added")
    for device, row in result["lookahead"].items():
        lines.append(
            f"lookahead on {device}: overlap {row['overlap']:.0%}, window {at['window']} s, "
            f"{format_size(int(row['fetched']))} fetched; waits {row['stall_ratio']:.0%} of those on demand; results "
            f"{'identical' if row['same'] else 'DIFFER'}; budget {'kept' if row['within'] else 'EXCEEDED'}"
        )
    return "\n".join(lines)
