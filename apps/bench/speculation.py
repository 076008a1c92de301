"""`edge bench speculation`: what prefill during the search wins, by how long the search takes beside the prefill."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.knowledge import SHAPES
from edge.apps.bench.process import measure, processor
from edge.apps.bench.vectors import VectorSet
from edge.errors import EdgeError
from edge.models.registry import models_dir

_WORKER = "edge.apps.bench.speculation_worker"


@click.command("speculation")
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="0.1b", show_default=True, help="Random model.")
@click.option("--requests", default=12, show_default=True, help="For each share, waiting and guessing by turns.")
@click.option(
    "--share",
    "shares",
    type=float,
    multiple=True,
    default=(0.25, 0.5, 1.0, 2.0),
    show_default=True,
    help="Search time over the time of prefill.",
)
@click.option("--documents", default=2, show_default=True, help="Of a request.")
@click.option("--tokens", default=500, show_default=True, help="Of a document.")
@click.option("--stages", default=4, show_default=True, help="Parts of a search that report what they found.")
@click.option("--rows", default=50_000, show_default=True, help="Vectors that are searched.")
@click.option("--threads", default=2, show_default=True)
@click.option("--work-dir", type=click.Path(file_okay=False, path_type=Path), help="Where models are made and kept.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")  # fmt: skip
def speculation(
    shape: str,
    requests: int,
    shares: tuple[float, ...],
    documents: int,
    tokens: int,
    stages: int,
    rows: int,
    threads: int,
    work_dir: Path | None,
    as_json: bool,
) -> None:
    """Time to the first token with prefill that begins during the search, and without.

    What each stage of a search finds is that of a real staged search of as many lists; how long it takes is set, and
    while it takes that long the cores are idle, as they are when an index is on a slow disk or elsewhere.
    """
    folder = work_dir or models_dir() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / f"random-{shape}.gguf"
    if not model.exists():
        click.echo(f"making {shape} with random weights", err=True)
        SHAPES[shape].write(model.with_suffix(".part")).replace(model)
    vectors = VectorSet.made(folder / f"staged-{rows}-{requests}", rows=rows, queries=requests, base=None)
    context = -(-(documents * (tokens + 40) + 320) // 256) * 256
    task: dict[str, Any] = {
        "name": "speculation", "model": str(model), "folder": str(folder), "set": str(vectors.folder),
        "context": context, "threads": threads, "memory": 2 * model.stat().st_size + 4 * 10**9, "requests": requests,
        "shares": list(shares), "documents": documents, "tokens": tokens, "stages": stages,
    }  # fmt: skip
    report = measure(_WORKER, task, threads=threads)
    conditions = {name: task[name] for name in ("requests", "documents", "tokens", "stages", "threads")}
    conditions |= {"shape": shape, "rows": rows, "processor": processor()}
    if as_json:
        click.echo(json.dumps({"conditions": conditions, **report}))
    else:
        _print(report, conditions)
    if report["busy"].get("started"):
        raise EdgeError("a guess was started while the engine was busy")


def _print(report: dict[str, Any], at: dict[str, Any]) -> None:
    settled = ", ".join(f"{share:.0%}" for share in report["settled"])
    click.echo(
        f"{at['shape']} (random weights), {at['documents']} new documents of {at['tokens']} tokens, prefill "
        f"{report['prefill']:.2f} s, {at['requests']} requests, {at['threads']} threads, {at['processor']}\n"
        f"final documents after each of {at['stages']} stages: {settled} of searches"
    )
    click.echo(f"{'search / prefill':>17}{'TTFT waiting':>14}{'guessing':>10}{'ratio':>7}{'in vain':>9}")
    for row in report["rows"]:
        waited, guessed = statistics.mean(row["waited"]), statistics.mean(row["guessed"])
        counters = row["counters"]
        computed = counters.get("useful_tokens", 0) + counters.get("wasted_tokens", 0)
        vain = counters.get("wasted_tokens", 0) / max(1, computed)
        click.echo(f"{row['share']:17.2f}{waited:12.2f} s{guessed:8.2f} s{waited / guessed:7.2f}{vain:9.0%}")
    click.echo(f"while another request waits: {report['busy'].get('started', 0):.0f} guesses started")
