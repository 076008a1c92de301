"""`memory`: measures quality, speed and memory use of the agent memory, beside BM25 and mem0."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Output, output_options, rounds_option, stated, threads_option, work_dir_option
from bench.process import measure, processor
from edge.config import format_size, parse_size
from edge.errors import CapabilityError, EdgeError

_QUALITY = "bench.memory_quality"
_SPEED = "bench.memory_speed"


@click.command()
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Conversations with questions in BEIR's layout (such as LoCoMo); without it, quality is left out.",
)  # fmt: skip
@click.option("--questions", default=0, help="Only about so many of its questions (0: all).")
@click.option("--memories", default=100_000, show_default=True, help="Memories that are searched.")
@click.option("--peer-memories", default=5_000, show_default=True, help="Memories when mem0 is beside it.")
@click.option("--memory", default="300MB", show_default=True, help="Limit of the process.")
@click.option("--searches", default=100, show_default=True)
@click.option("--adds", default=100, show_default=True)
@rounds_option(2)
@click.option("--intents", default=200, show_default=True, help="Tasks the action cache knows.")
@click.option("--most-wrong", default=0.05, show_default=True, help="Share of wrong hits it is calibrated to.")
@click.option(
    "--model-seconds", default=5.0, show_default=True, help="Seconds that a hit saves: one task done by a model."
)
@click.option(
    "--mem0-python",
    help="A Python in which mem0ai and edge-rag are installed; this one if not given, if it has mem0ai.",
)
@threads_option
@work_dir_option
@output_options
def memory(
    data: Path | None,
    questions: int,
    memories: int,
    peer_memories: int,
    memory: str,
    searches: int,
    adds: int,
    rounds: int,
    intents: int,
    most_wrong: float,
    model_seconds: float,
    mem0_python: str | None,
    threads: int,
    work_dir: Path,
    output: Output,
) -> None:
    """Find the evidence of questions about conversations; add to and search many memories; look up actions."""
    folder = work_dir / "memory"
    limit = parse_size(memory)
    report: dict[str, Any] = {
        "conditions": {"limit": limit, "threads": threads, "processor": processor(), "rounds": rounds}
    }
    if data is not None:
        click.echo("quality: storing conversations, asking questions", err=True)
        task = {"name": "quality", "data": str(data), "questions": questions, "memory": limit}
        report["quality"] = measure(_QUALITY, task, threads=threads)
    common = {"folder": str(folder), "searches": searches, "adds": adds, "memory": limit, "threads": threads}
    for count in (memories, peer_memories):
        click.echo(f"speed: {count:,} memories (made once, in {folder})", err=True)
        measure(_SPEED, common | {"name": "fill", "system": "fill", "count": count}, threads=threads)
    report["speed"] = {"edge, many": _run(common, "edge", memories)}
    turns: dict[str, list[dict[str, Any]]] = {"edge": [], "mem0": []}
    notes: list[str] = []
    try:
        for _ in range(rounds):
            turns["edge"].append(_run(common, "edge", peer_memories))
            turns["mem0"].append(_run(common, "mem0", peer_memories, mem0_python))
        report["speed"] |= {name: _median(found) for name, found in turns.items()}
    except CapabilityError as error:
        notes.append(f"mem0 was left out: {error}")
        click.echo(f"  mem0 is left out: {error}", err=True)
    click.echo("actions: storing tasks, calibrating, looking up other wordings", err=True)
    task = {"name": "actions", "intents": intents, "memory": limit, "most_wrong": most_wrong}
    report["actions"] = measure(_QUALITY, task, threads=threads) | {"model_seconds": model_seconds}
    output.put(report, figures(report, turns), stated(report["conditions"]), notes)
    broken = {name: found["peak_resident"] for name, found in _ours(report) if found["peak_resident"] > limit}
    if broken:
        raise EdgeError(f"the limit was broken: {', '.join(f'{n} held {format_size(b)}' for n, b in broken.items())}")


def _run(common: dict[str, Any], system: str, count: int, python: str | None = None) -> dict[str, Any]:
    """Measures one system in a process and a scratch folder of its own."""
    click.echo(f"speed: {system} with {count:,} memories", err=True)
    with tempfile.TemporaryDirectory(dir=common["folder"]) as scratch:
        task = common | {"name": system, "system": system, "count": count, "scratch": scratch}
        return measure(_SPEED, task, threads=common["threads"], python=python or sys.executable)


_TIMES = ("search", "search_beside_embedding", "add", "add_beside_embedding")


def _median(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of repeated runs, and the largest of their memory peaks."""
    times = {t: {p: statistics.median(r[t][p] for r in reports) for p in ("p50", "p95")} for t in _TIMES}
    return {**times, "rows": reports[0]["rows"], "peak_resident": max(r["peak_resident"] for r in reports)}


def figures(report: dict[str, Any], turns: dict[str, list[dict[str, Any]]]) -> Iterator[Figure]:
    """The figures of a stored run. `turns` holds the repeated runs beside mem0 by system."""
    if "quality" in report:
        quality = {"recall": higher("recall@10"), "ndcg": higher("nDCG@10"), "seconds": lower("time", "s")}
        yield from tabulate(report["quality"]["systems"], quality, "evidence of questions about conversations")
    columns = {f"{t}.{p}": lower(f"{t.replace('_', ' ')} {p}", "s", 1e-3) for t in _TIMES for p in ("p50", "p95")}
    runs = {"edge, many": [report["speed"]["edge, many"]], **{name: found for name, found in turns.items() if found}}
    rows = {
        f"{name.split(',')[0]}, {found[0]['rows']:,} memories": {
            **{t: {p: [run[t][p] for run in found] for p in ("p50", "p95")} for t in _TIMES},
            "peak_resident": [run["peak_resident"] for run in found],
        }
        for name, found in runs.items()
    }
    peers = [name for name in rows if name.startswith("mem0")]
    yield from tabulate(rows, columns | {"peak_resident": lower("peak", "B")}, "searching and adding", peers)
    actions = {name: row for name, row in report["actions"].items() if isinstance(row, dict)}
    found = {
        "found": higher("found", "%"), "wrong_of_hits": lower("wrong hits", "%"),
        "wrong_of_absent": lower("absent tasks hit", "%"), "lookup_ms": lower("lookup", "s", 1e-3),
    }  # fmt: skip
    yield from tabulate(actions, found, "cache of actions")


def _ours(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every run that had to keep the memory limit."""
    runs = [(name, found) for name, found in report["speed"].items() if name != "mem0"]
    return [*runs, *((name, report[name]) for name in ("quality", "actions") if name in report)]
