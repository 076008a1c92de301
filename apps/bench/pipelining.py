"""`edge bench pipelining`: compares retrieval during generation (PipeRAG) with waiting for it, over a slow link."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import click

from edge.apps.bench.figures import higher, lower, neither, tabulate
from edge.apps.bench.options import Output, output_options
from edge.apps.bench.process import measure
from edge.apps.bench.rag_index import COPY_COSINE, IndexData, index_options
from edge.config import format_size, parse_size
from edge.errors import InputError

_WORKER = "edge.apps.bench.pipelining_worker"
_ARMS = {"waits": "waits for each search", "pipelined": "one interval stale", "adaptive": "and nprobe from the slack"}


@click.command()
@index_options()
@click.option("--probe-share", default=1 / 16, show_default=True, help="Of the lists, probed where nprobe is fixed.")
@click.option("--bandwidth", default="100MB", show_default=True, help="Of the link to the index, per second.")
@click.option("--decode", default=100.0, show_default=True, help="Tokens per second the model writes.")
@click.option("--interval", default=32, show_default=True, help="Tokens between two retrievals.")
@click.option("--texts", default=12, show_default=True, help="Paragraphs that are written.")
@click.option("--warmup", default=2, show_default=True, help="Before them; lists are cached.")
@output_options
def pipelining(
    probe_share: float,
    bandwidth: str,
    decode: float,
    interval: int,
    texts: int,
    warmup: int,
    output: Output,
    data: IndexData,
) -> None:
    """Write paragraphs at a given speed and retrieve for every interval of them, in three ways."""
    made = data.made()
    corpus = made.corpora[0]
    written = sorted(corpus.texts, key=len, reverse=True)[: warmup + texts]
    if len(written) < warmup + texts:
        raise InputError(f"{corpus.name} has only {len(corpus.texts)} texts")
    task = {
        "folder": str(made.folder), "texts": written, "probe_share": probe_share, "reuse": True,
        "list_memory": made.memory, "bandwidth": parse_size(bandwidth), "decode": decode,
        "interval": interval,
    }  # fmt: skip
    arms = {}
    for arm in _ARMS:
        click.echo(f"measuring: {_ARMS[arm]}", err=True)
        arms[arm] = measure(_WORKER, {**task, "name": arm, "arm": arm}, threads=1)["rows"][warmup:]
    table = {arm: _row(report, arms["waits"]) for arm, report in arms.items()}
    modelled = _modelled(arms["waits"], interval / decode)
    conditions = {
        **made.conditions(), "list_memory": made.memory,
        "bandwidth": task["bandwidth"], "decode": decode, "interval": interval, "texts": texts,
        "modelled_s": modelled, "probe_share": probe_share,
    }  # fmt: skip
    columns = {
        "seconds": lower("time of a text", "s"), "stall_s": lower("waits", "s"), "kept": higher("kept", "%"),
        "nprobe": neither("nprobe"),
    }  # fmt: skip
    named = {_ARMS[arm]: row for arm, row in table.items()}
    result = {"conditions": conditions, "arms": table}
    output.put(result, tabulate(named, columns), lambda: _print(table, conditions))


def _row(report: Sequence[dict[str, Any]], fresh: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over texts. `kept` is the share of the waiting arm's passages for an interval that this arm had,
    too."""
    searches = [search for row in report for search in row["searches"]]
    slack = [search["seconds"] / search["slack"] for search in searches if search["slack"]]
    pairs = [
        len(set(mine["found"]) & set(best["found"])) / max(1, len(best["found"]))
        for row, other in zip(report, fresh, strict=True)
        for mine, best in zip(row["searches"], other["searches"], strict=True)
    ]
    return {
        "seconds": statistics.mean(row["seconds"] for row in report),
        "stall_s": statistics.mean(row["stall_s"] for row in report),
        "search_s": statistics.mean(sum(search["seconds"] for search in row["searches"]) for row in report),
        "nprobe": statistics.mean(search["nprobe"] for search in searches),
        "slack_used": statistics.mean(slack) if slack else None,
        "over_slack": sum(share > 1.1 for share in slack) / len(slack) if slack else None,
        "searches": len(searches),
        "kept": statistics.mean(pairs),
    }


def _modelled(report: Sequence[dict[str, Any]], seconds: float) -> float:
    """The predicted duration of a text with each search one interval early, by the waiting arm's search times."""
    searched = [[search["seconds"] for search in row["searches"]] for row in report]
    return statistics.mean(modelled_seconds([seconds] * (len(times) + 1), times, pipelined=True) for times in searched)


def _print(table: dict[str, dict[str, Any]], c: dict[str, Any]) -> None:
    click.echo(
        f"{c['rows']:,} vectors of {', '.join(c['data'])} (beyond the real ones, copies at cosine {COPY_COSINE}), "
        f"{c['lists']} lists, {format_size(c['index_bytes'])} over a link of {format_size(c['bandwidth'])}/s; "
        f"{format_size(c['list_memory'])} of lists in memory; {c['texts']} paragraphs written at {c['decode']:.0f} "
        f"tokens/s, a retrieval for every {c['interval']} tokens; fixed nprobe is {c['probe_share']:.1%} of the lists"
    )
    click.echo(f"{'':28}{'per text':>9}{'waited':>9}{'searched':>10}{'hidden':>8}{'nprobe':>8}{'late':>7}{'kept':>7}")
    for arm, row in table.items():
        hidden = 1 - row["stall_s"] / max(1e-9, row["search_s"])
        late = "-" if row["over_slack"] is None else f"{row['over_slack']:.0%}"
        click.echo(
            f"{_ARMS[arm]:28}{row['seconds']:7.2f} s{row['stall_s']:7.2f} s{row['search_s']:8.2f} s{hidden:8.0%}"
            f"{row['nprobe']:8.1f}{late:>7}{row['kept']:7.0%}"
        )
    click.echo(f"one interval stale should take {c['modelled_s']:.2f} s by the times of the searches waited for")
    click.echo("late: searches beyond 1.1 times their slack; kept: of what waiting finds for the same interval")


def modelled_seconds(generation: Sequence[float], retrieval: Sequence[float], *, pipelined: bool) -> float:
    """Latency of a generation with retrievals, computed from the times of its parts.

    Args:
        generation: seconds of each interval.
        retrieval: seconds of the retrieval for each interval but the first.
        pipelined: False adds all times up. True takes the longer of the two for each interval, except for the first
            retrieval, which overlaps nothing.
    """
    first, *rest = generation
    pairs = list(zip(rest, retrieval, strict=True))
    hidden = pairs[1:] if pipelined else []
    return first + sum(map(sum, pairs[: len(pairs) - len(hidden)])) + sum(map(max, hidden))
