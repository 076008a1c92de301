"""`edge bench pipelining`: retrieval during generation (PipeRAG) against waiting for it, over a slow link."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.process import measure
from edge.apps.bench.rag_index import COPY_COSINE, build, index_options
from edge.config import format_size, parse_size
from edge.errors import InputError
from edge.models.registry import models_dir
from edge.models.training.corpora import load
from edge.pipelining import modelled_seconds

_WORKER = "edge.apps.bench.pipelining_worker"
_ARMS = {"waits": "waits for each search", "pipelined": "one interval stale", "adaptive": "and nprobe from the slack"}


@click.command()
@click.option(
    "--data", "folders", multiple=True, required=True, help="Judged sets in BEIR's layout; texts come from the first.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@index_options
@click.option("--probe-share", default=1 / 16, show_default=True, help="Of the lists, probed where nprobe is fixed.")
@click.option("--bandwidth", default="100MB", show_default=True, help="Of the link to the index, per second.")
@click.option("--decode", default=100.0, show_default=True, help="Tokens per second the model writes.")
@click.option("--interval", default=32, show_default=True, help="Tokens between two retrievals.")
@click.option("--texts", default=12, show_default=True, help="Paragraphs that are written.")
@click.option("--warmup", default=2, show_default=True, help="Before them; lists are cached.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pipelining(
    folders: tuple[Path, ...],
    rows: int,
    list_rows: int,
    probe_share: float,
    memory_share: float,
    bandwidth: str,
    decode: float,
    interval: int,
    texts: int,
    warmup: int,
    work_dir: Path | None,
    as_json: bool,
) -> None:
    """Write paragraphs at a given speed and retrieve for every interval of them, in three ways."""
    corpora = [load(folder) for folder in folders]
    place = (work_dir or models_dir() / "bench") / f"rag-{rows}-{list_rows}"
    held, lists, nbytes = build(place, corpora, rows, list_rows=list_rows, say=lambda text: click.echo(text, err=True))
    written = sorted(corpora[0].texts, key=len, reverse=True)[: warmup + texts]
    if len(written) < warmup + texts:
        raise InputError(f"{folders[0]} has only {len(corpora[0].texts)} texts")
    task = {
        "folder": str(place), "texts": written, "probe_share": probe_share, "reuse": True,
        "list_memory": int(nbytes * memory_share), "bandwidth": parse_size(bandwidth), "decode": decode,
        "interval": interval,
    }  # fmt: skip
    arms = {}
    for arm in _ARMS:
        click.echo(f"measuring: {_ARMS[arm]}", err=True)
        arms[arm] = measure(_WORKER, {**task, "name": arm, "arm": arm}, threads=1)["rows"][warmup:]
    table = {arm: _row(report, arms["waits"]) for arm, report in arms.items()}
    modelled = _modelled(arms["waits"], interval / decode)
    conditions = {
        "rows": held, "lists": lists, "index_bytes": nbytes, "list_memory": task["list_memory"],
        "bandwidth": task["bandwidth"], "decode": decode, "interval": interval, "texts": texts,
        "modelled_s": modelled, "probe_share": probe_share, "data": [corpus.name for corpus in corpora],
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps({"conditions": conditions, "arms": table}))
    else:
        _print(table, conditions)


def _row(report: Sequence[dict[str, Any]], fresh: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over texts; `kept` is the share of what waiting finds for an interval that this arm had for it."""
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
    """What a text should take with each search one interval early, from the times of those that were waited for."""
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
