"""`edge bench overhead`: measures the core's own time in a reranking, and for each list of a search."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.figures import Figure, lower, tabulate
from edge.apps.bench.options import Output, output_options, rounds_option, threads_option, work_dir_option
from edge.apps.bench.overhead_worker import PARTS
from edge.apps.bench.process import measure, processor
from edge.config import parse_size

_WORKER = "edge.apps.bench.overhead_worker"


@click.command("overhead")
@click.option("--model", default="", help="The reranker; the default one if not given.")
@click.option("--memory", default="300MB", show_default=True, help="The limit of the reranking.")
@click.option("--candidates", default=60, show_default=True)
@click.option("--tokens", default=207, show_default=True, help="Of a sequence, with the question.")
@click.option("--rows", default=20_000, show_default=True, help="Vectors of the index, in lists of about 100.")
@click.option("--dim", default=384, show_default=True, help="Values of a vector.")
@click.option("--nprobe", default=32, show_default=True, help="Lists that a search probes.")
@threads_option
@rounds_option(15)
@work_dir_option
@output_options
def overhead(
    model: str, memory: str, candidates: int, tokens: int, rows: int, dim: int, nprobe: int, threads: int, rounds: int,
    work_dir: Path, output: Output,
) -> None:  # fmt: skip
    """The time of the core alone: in a reranking, what is left of it beside the model's work, with the layers and with
    layers that compute nothing; in a search, the time for each list on the device `null`."""
    work_dir.mkdir(parents=True, exist_ok=True)
    task = {
        "name": "overhead", "model": model, "memory": parse_size(memory), "candidates": candidates, "tokens": tokens,
        "rows": rows, "dim": dim, "nprobe": nprobe, "rounds": rounds, "work_dir": str(work_dir), "watch": 1.0,
    }  # fmt: skip
    report = measure(_WORKER, task, threads=threads)
    result = {"processor": processor(), "threads": threads, "rounds": rounds, **report}
    output.put(result, figures(report), lambda: _print(result, candidates, tokens))


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run."""
    arms = {name: _columns(rounds) for name, rounds in report["rerank"]["arms"].items()}
    parts = {name: lower(name, "s") for name in ("core", *PARTS)}
    yield from tabulate(arms, {"seconds": lower("whole", "s"), **parts}, "reranking")
    lists = {name: {"list": rounds} for name, rounds in report["search"].items()}
    yield from tabulate(lists, {"list": lower("a list", "s")}, "search")


def _columns(rounds: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rounds] for name in rounds[0]}


def _print(result: dict[str, Any], candidates: int, tokens: int) -> None:
    rerank = result["rerank"]
    click.echo(
        f"{result['processor']}, {result['threads']} threads; {candidates} sequences of {tokens} tokens, "
        f"{rerank['layers']} layers, {rerank['buffers']} in memory; medians of {result['rounds']} alternating rounds"
    )
    click.echo(f"{'':10}{'whole':>10}" + "".join(f"{name:>12}" for name in PARTS) + f"{'core':>10}")
    whole = statistics.median(row["seconds"] for row in rerank["arms"]["layers"])
    for name, rounds in rerank["arms"].items():
        medians = {part: statistics.median(values) for part, values in _columns(rounds).items()}
        parts = "".join(f"{1e3 * medians[part]:9.1f} ms" for part in PARTS)
        core = medians["core"]
        click.echo(f"{name:10}{1e3 * medians['seconds']:7.1f} ms{parts}{1e3 * core:7.1f} ms  {core / whole:.1%}")
    for name, values in result["search"].items():
        click.echo(f"a list in memory, device {name}: {1e6 * statistics.median(values):.1f} us of a search")
