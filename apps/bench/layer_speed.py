"""`edge bench layer-speed`: measures the time per token in one encoder layer, with this program's runtimes, a plain
onnxruntime session, and transformers, on the same weights and tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import click

from edge.apps.bench.figures import Figure, lower, tabulate
from edge.apps.bench.options import Output, names_option, output_options, rounds_option, threads_option
from edge.apps.bench.process import measure, processor
from edge.errors import EdgeError
from edge.models.synth import SHAPES

_WORKER = "edge.apps.bench.layer_speed_worker"
_SYSTEMS = ("native", "onnx", "onnxruntime", "transformers")


@click.command("layer-speed")
@names_option("--shapes", SHAPES, "ms-marco-minilm-l6,bge-reranker-v2-m3", help="Published shapes, random weights.")
@names_option("--systems", _SYSTEMS, help="The first that runs is the measure.")
@click.option("--sequences", default=10, show_default=True)
@click.option("--tokens", default=190, show_default=True, help="Of a sequence, on average; lengths differ by a third.")
@threads_option
@rounds_option(15)
@output_options
def layer_speed(
    shapes: list[str], systems: list[str], sequences: int, tokens: int, threads: int, rounds: int, output: Output
) -> None:
    """Microseconds for a token in a layer, int8 (transformers: fp32), random weights."""
    reports: dict[str, dict[str, Any]] = {}
    for shape in shapes:
        task = {
            "name": shape, "shape": shape, "systems": systems, "sequences": sequences, "tokens": tokens,
            "threads": threads, "rounds": rounds, "watch": 1.0,
        }  # fmt: skip
        reports[shape] = measure(_WORKER, task, threads=threads)
        if not reports[shape]["systems"]:
            raise EdgeError(f"none of {', '.join(systems)} runs {shape} here")
    result = {"processor": processor(), "threads": threads, "rounds": rounds, "shapes": reports}
    notes = {f"{name} was left out: {why}" for report in reports.values() for name, why in report["left_out"].items()}
    output.put(result, figures(reports), lambda: _print(result, sequences), sorted(notes))


def figures(reports: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    """The figures of a stored run."""
    for shape, report in reports.items():
        columns = {"seconds": lower("a token and layer", "s", 1 / report["tokens"])}
        yield from tabulate(report["systems"], columns, shape, ("onnxruntime", "transformers"))


def _print(result: dict[str, Any], sequences: int) -> None:
    click.echo(
        f"{result['processor']}, {result['threads']} threads; medians of {result['rounds']} alternating rounds, and "
        f"the fastest"
    )
    for shape, report in result["shapes"].items():
        click.echo(f"{shape}: {sequences} sequences, {report['tokens']} tokens; time a token and layer in microseconds")
        click.echo(f"{'':14}{'median':>9}{'fastest':>9}{'CPU':>9}{'tokens/s':>11}{'speed':>8}{'differs by':>12}")
        first = next(iter(report["systems"].values()))["seconds"]
        for name, row in report["systems"].items():
            micro = [1e6 * seconds / report["tokens"] for seconds in row["seconds"]]
            ratio = statistics.median(a / b for a, b in zip(first, row["seconds"], strict=True))
            click.echo(
                f"{name:14}{statistics.median(micro):9.2f}{min(micro):9.2f}"
                f"{1e6 * statistics.median(row['cpu']) / report['tokens']:9.2f}"
                f"{1e6 / statistics.median(micro):11,.0f}{ratio:8.2f}{row['apart']:12.1e}"
            )
        for name, reason in report["left_out"].items():
            click.echo(f"{name:14} left out: {reason}")
