"""`traversal`: searches a graph on a throttled device, with several groups under way (Falcon)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from naive.published_systems import TRAVERSAL_HOPS, TRAVERSAL_RECALL

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, output_options
from bench.process import measure, processor
from bench.rag_index import say, stored_sentences, stored_vectors
from bench.vectors import VectorSet
from bench.vectors import recall as recall_of
from edge.budget import MemoryBudget
from edge.config import format_size, parse_size
from edge.errors import EdgeError, InputError
from edge.models.registry import models_dir
from edge.models.training.corpora import load
from edge.runtimes.embedder import Embedder

_WORKER = "bench.traversal_worker"
_INDEX = "bench.index_worker"
_EMBEDDING_MEMORY = 4 << 30
_LISTS_MEMORY = 4 << 30

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Candidates of a group in synchronous search, which has one group under way."""

_GROUPS, _CANDIDATES = range(1, 8), range(1, 5)
"""The sizes in the source's figure."""


@click.command("traversal")
@click.option("--rows", default=30_000, show_default=True, help="Made-up vectors, if no data is given.")
@click.option(
    "--data", "folders", multiple=True, type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Judged set in BEIR layout: its sentences are the rows; questions are the first one's.",
)  # fmt: skip
@click.option("--queries", default=60, show_default=True)
@click.option("--degree", default=32, show_default=True, help="Most neighbours of a vertex.")
@click.option("--length", default=64, show_default=True, help="Queue of results for hops and recall by group size.")
@click.option("--recall", default=0.99, show_default=True, help="Recall@10 that all reach where times are compared.")
@click.option("--latency", default=1e-4, show_default=True, help="Seconds of a request to the device.")
@click.option("--bandwidth", default="1GB", show_default=True, help="Of the link to the device, a second.")
@click.option("--depth", default=64, show_default=True, help="Requests to the device whose latencies overlap.")
@click.option("--rounds", default=3, show_default=True, help="Each query's fastest round counts.")
@click.option("--lists", is_flag=True, help="Measure the index of lists and the graph on the host alone, too.")
@click.option(
    "--work-dir", type=click.Path(file_okay=False, path_type=Path), help="Where vectors and graph are made and kept."
)
@output_options
def traversal(
    rows: int,
    folders: Sequence[Path],
    queries: int,
    degree: int,
    length: int,
    recall: float,
    latency: float,
    bandwidth: str,
    depth: int,
    rounds: int,
    lists: bool,
    work_dir: Path | None,
    output: Output,
) -> None:
    """Search a graph on a throttled device (`limited`) with several groups of candidates in flight (Falcon)."""
    place = work_dir or models_dir() / "bench" / "traversal"
    vectors = _vectors(place, folders, rows, queries)
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
    output.put(report, figures(report), lambda: _print(report))


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Best-first search, the fastest search with one group under way, and the fastest with several."""
    return {
        "best-first": next(row for row in rows if (row["groups"], row["candidates"]) == (1, 1)),
        "synchronous": min((row for row in rows if row["groups"] == 1), key=lambda row: float(row["seconds"])),
        "delayed": min((row for row in rows if row["groups"] > 1), key=lambda row: float(row["seconds"])),
    }


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run: hops and recall by group size, and times at equal recall."""
    found = {f"{row['groups']} groups of {row['candidates']}": row for row in report["figure"]["rows"]}
    counted = {"hops": lower("hops", ""), "recall": higher("recall@10", "%")}
    yield from tabulate(found, counted, f"hops and recall with a queue of {report['figure']['length']}")
    columns = {
        "groups": neither("groups"), "candidates": neither("candidates"), "length": neither("queue"),
        "hops": neither("hops"), "seconds": lower("time", "s"), "peak_resident": lower("peak", "B"),
    }  # fmt: skip
    yield from tabulate(report["chosen"], columns, f"times at a recall of {report['conditions']['recall']}")
    if "lists" in report:
        timed = {"seconds": lower("time", "s"), "peak_resident": lower("peak", "B")}
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
    held = stored_vectors(own / "vectors.npy", stored_sentences(own / "texts.jsonl", corpora), budget, say)
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
    return measure(_WORKER, task | more, threads=1)


def _lists(task: dict[str, Any], own: Path, recall: float, queries: int) -> dict[str, Any]:
    """The index of lists on the same vectors, all of which it may hold."""
    say("the index of lists")
    lists = task | {
        "name": "the index of lists", "index": str(own / "index"), "memory": _LISTS_MEMORY, "codec": "auto",
        "nprobe": None, "cold": 0,
    }  # fmt: skip
    if not (own / "index" / "index.db").exists():
        (own / "index").mkdir(parents=True, exist_ok=True)
        measure(_INDEX, lists | {"action": "build"}, threads=1)
    found = measure(_INDEX, lists | {"action": "search"}, threads=1)
    vectors = VectorSet.stored(Path(task["set"]))
    half = queries // 2
    return {
        "seconds": statistics.median(found["warm"]), "recall": recall_of(found["ids"], vectors.truth),
        "measured": queries - half,
        "codec": found["codec"], "lists": found["lists"], "nprobe": found["nprobe"],
        "peak_resident": found["peak_resident"],
    }  # fmt: skip


def _print(report: dict[str, Any]) -> None:
    c = report["conditions"]
    click.echo(
        f"THROTTLED TEST DEVICE (limited): {c['latency_s'] * 1e6:.0f} microseconds a request and "
        f"{format_size(int(c['bandwidth']))} a second, the latencies of up to {c['depth']} requests overlap\n"
        f"{c['rows']:,} vectors of {c['dim']} dimensions ({c['vectors']}), {c['queries']} queries; "
        f"faiss's HNSW graph, {c['degree']:.1f} neighbours on average, {format_size(c['graph_bytes'])}; "
        f"{c['processor']}"
    )
    first = report["figure"]["rows"][0]
    click.echo(
        f"\nHops over those of best-first search ({first['hops']:.1f}) and recall@10 with a queue of "
        f"{report['figure']['length']} results; in brackets the source's figure (other data)"
    )
    click.echo("candidates" + "".join(f"{groups:>9} group{'s' if groups > 1 else ' '}" for groups in _GROUPS))
    rows = iter(report["figure"]["rows"])
    for line, candidates in enumerate(_CANDIDATES):
        found = [next(rows) for _ in _GROUPS]
        hops = "".join(
            f"{row['hops'] / first['hops']:8.2f} ({TRAVERSAL_HOPS[line][column]:4.2f}) "
            for column, row in enumerate(found)
        )
        click.echo(f"{candidates:>3} hops   {hops}")
        right = "".join(
            f"{row['recall']:8.1%} ({TRAVERSAL_RECALL[line][column]:.1f}) " for column, row in enumerate(found)
        )
        click.echo(f"    recall {right}")
    click.echo(f"\nTimes at a recall of {c['recall']} (each setting with the shortest queue that reaches it):")
    click.echo(
        f"{'':12}{'groups':>8}{'candidates':>12}{'queue':>7}{'recall':>8}{'hops':>8}{'rows':>8}{'time':>11}{'peak':>11}"
    )
    for name, row in report["chosen"].items():
        click.echo(
            f"{name:12}{row['groups']:>8}{row['candidates']:>12}{row['length']:>7}{row['recall']:>8.1%}{row['hops']:>8.1f}"
            f"{row['visited']:>8.0f}{row['seconds'] * 1e3:>8.2f} ms{format_size(row['peak_resident']):>11}"
        )
    if lists := report.get("lists"):
        click.echo(
            f"without a device: the graph {lists['graph_seconds'] * 1e3:.2f} ms with its fastest setting; the index of "
            f"lists {lists['seconds'] * 1e3:.2f} ms at a recall of {lists['recall']:.1%} ({lists['codec']}, "
            f"{lists['nprobe']} of {lists['lists']} lists), peak {format_size(lists['peak_resident'])}"
        )
    gain = report["speedup"]
    click.echo(
        f"delayed synchronisation is {gain['best-first']:.2f} times as fast as best-first search and "
        f"{gain['synchronous']:.2f} times as fast as the fastest search with one group under way"
    )
