"""`tune`: the chosen parameters of an index beside every other point of the grid, on held-out queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bench.figures import Figure
from bench.options import Output, base_option, output_options, stated, vectors_dir_option
from bench.process import measure, processor
from bench.vectors import VectorSet, embeddings
from edge.config import parse_size
from edge.errors import InputError
from edge.ivf.base import Goal

_LEAST = 60
"""The fewest questions: half of them are used to choose, and half are held out."""

_WORKER = "bench.tune_worker"


@click.command("tune")
@click.option("--rows", default=100_000, show_default=True, help="Number of made-up vectors, without --vectors.")
@base_option
@click.option(
    "--vectors",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Embeddings (.npy [n, dim]) to search as they are; needs --questions.",
)
@click.option(
    "--questions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Embedded questions (.npy [q, dim]) for --vectors.",
)
@click.option("--queries", default=4_000, show_default=True, help="Queries: half choose, half are held out.")
@click.option("--recall", "recalls", type=float, multiple=True, default=(0.8, 0.95), show_default=True)
@click.option("--memory", default="600MB", show_default=True, help="Limit of the whole process.")
@click.option("--timed", default=32, show_default=True, help="Held-out queries that are timed.")
@click.option("--rounds", default=3, show_default=True, help="Turns in which all points are timed.")
@click.option("--threads", default=2, show_default=True, help="Threads of training.")
@vectors_dir_option
@output_options
def tune(
    rows: int,
    base: Path | None,
    vectors: Path | None,
    questions: Path | None,
    queries: int,
    recalls: tuple[float, ...],
    memory: str,
    timed: int,
    rounds: int,
    threads: int,
    work_dir: Path,
    output: Output,
) -> None:
    """Choose an index's parameters, and time every other point of the grid beside the choice."""
    limit = parse_size(memory)
    for recall in recalls:
        Goal(recall=recall)  # an invalid goal is refused before any vector is made
    if queries < _LEAST:
        raise InputError(f"half of the questions choose: at least {_LEAST} are needed, not {queries}")
    if (vectors is None) != (questions is None):
        raise InputError("--vectors and --questions go together: embeddings, and the questions that are asked of them")
    click.echo("vectors and exact answers", err=True)
    if vectors is None or questions is None:
        made = VectorSet.made(work_dir / "vectors", rows=rows, queries=queries, base=base)
    else:
        rows_of, asked = embeddings(vectors), embeddings(questions)[:queries]
        if rows_of.shape[1] != asked.shape[1] or len(asked) < _LEAST:
            raise InputError(
                f"vectors {list(rows_of.shape)} and questions {list(asked.shape)} do not fit each other, or there are "
                f"fewer than {_LEAST} questions"
            )
        made = VectorSet.given(work_dir / "vectors", rows_of, asked, f"{len(rows_of):,} given embeddings")
    (work_dir / "index").mkdir(exist_ok=True)
    task = {
        "set": str(made.folder), "index": str(work_dir / "index"), "memory": limit, "recalls": list(recalls),
        "timed": timed, "rounds": rounds, "threads": threads, "watch": 0.05,
    }  # fmt: skip
    click.echo("choice and sweep", err=True)
    report = measure(_WORKER, task, threads=threads)
    result = report | {"limit": limit, "processor": processor(), "timed": timed, "rounds": rounds, "threads": threads}
    output.put(result, figures(result), stated(result), held=report["peak_resident"], limit=limit)


def figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of the stored run: for each goal the choice, the fastest point, and the index that was built."""
    for row, index in zip(result["goals"], result["indexes"], strict=True):
        goal = f"recall {row['goal']:g}"
        for name in ("chosen", "fastest"):
            yield Figure(f"{goal}, {name}", "held-out recall@10", "", "higher", (row[name]["recall"],))
            yield Figure(f"{goal}, {name}", "query", "s", "lower", (row[name]["seconds"],))
        yield Figure(f"{goal}, chosen", "predicted", "s", "neither", (row["predicted_s"],))
        yield Figure(f"{goal}, index", "held-out recall@10", "", "higher", (index["recall"],))
        yield Figure(f"{goal}, index", "query", "s", "lower", (index["seconds"],))
    yield Figure("all", "choice", "s", "lower", (result["choice_s"],))
    yield Figure("all", "peak memory", "B", "lower", (float(result["peak_resident"]),))
