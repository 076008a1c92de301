"""`edge bench assistant`: the six pipelines replayed over an index on disk, with lookahead and without (TeleRAG)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.assistant_worker import _LINK
from edge.apps.bench.process import measure
from edge.apps.bench.rag_index import COPY_COSINE, build, index_options
from edge.apps.bench.rag_traces import PIPELINES, cases, write_trace
from edge.config import format_size, parse_size
from edge.errors import EdgeError, InputError
from edge.models.registry import models_dir
from edge.models.training.corpora import load

_WORKER = "edge.apps.bench.assistant_worker"
_PAPER_COVERAGE = {
    "hyde": 0.731, "subquestion": 0.632, "iterative": 0.915, "iter-retgen": 0.838, "flare": 0.791, "self-rag": 1.0,
}  # fmt: skip
"""TeleRAG, table 1, NQ: lists probed in the end that are among as many nearest to the prediction (256 of 4096)."""


@click.command("assistant")
@click.option(
    "--data", "folders", multiple=True, required=True, type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Judged set in BEIR layout; the first one's test questions are asked, all of them are indexed.",
)  # fmt: skip
@index_options
@click.option("--probe-share", type=float, help="Of the lists, probed by a search; else what recall 0.95 asks for.")
@click.option("--bandwidth", default="12MB", show_default=True, help="Of the link to the index, per second.")
@click.option("--decode", default=100.0, show_default=True, help="Tokens per second the replayed model writes.")
@click.option("--prefill", default=2000.0, show_default=True, help="Tokens per second it reads.")
@click.option("--questions", default=16, show_default=True, help="Measured per pipeline.")
@click.option("--warmup", default=4, show_default=True, help="Before them; times are learned and lists cached.")
@click.option("--rounds", default=1, show_default=True, help="Alternating repetitions (A B A B ...).")
@click.option("--pipelines", default=",".join(PIPELINES), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def assistant(
    folders: Sequence[Path],
    rows: int,
    list_rows: int,
    probe_share: float | None,
    memory_share: float,
    bandwidth: str,
    decode: float,
    prefill: float,
    questions: int,
    warmup: int,
    rounds: int,
    pipelines: str,
    work_dir: Path | None,
    as_json: bool,
) -> None:
    """Replay recorded pipelines over an index on disk: on-demand retrieval against lookahead, same memory."""
    chosen = pipelines.split(",")
    if unknown := set(chosen) - set(PIPELINES):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(PIPELINES)}")
    corpora = [load(folder) for folder in folders]
    asked = cases(corpora[0])[: warmup + questions]
    if len(asked) < warmup + questions:
        raise InputError(f"{folders[0]} has only {len(asked)} questions with company in their paragraph and article")
    place = (work_dir or models_dir() / "bench") / f"rag-{rows}-{list_rows}"
    held, lists, nbytes = build(place, corpora, rows, list_rows=list_rows, say=lambda text: click.echo(text, err=True))
    common = {
        "folder": str(place), "questions": [case.question for case in asked], "probe_share": probe_share,
        "list_memory": int(nbytes * memory_share), "bandwidth": parse_size(bandwidth),
    }  # fmt: skip
    results = []
    for pipeline in chosen:
        trace = place / f"{pipeline}.jsonl"
        write_trace(trace, pipeline, asked, prefill=prefill, decode=decode)
        arms: dict[bool, list[list[dict[str, Any]]]] = {False: [], True: []}
        for turn in range(rounds):
            for lookahead, reports in arms.items():
                name = "lookahead" if lookahead else "on demand"
                click.echo(f"round {turn + 1} of {rounds}: {pipeline}, {name}", err=True)
                task = {**common, "name": name, "trace": str(trace), "pipeline": pipeline, "lookahead": lookahead}
                report = measure(_WORKER, task, threads=1)
                nprobe = report["nprobe"]
                reports.append(report["rows"][warmup:])
        results.append(_row(pipeline, arms[False], arms[True]))
    conditions = {
        "rows": held, "lists": lists, "index_bytes": nbytes, "list_memory": common["list_memory"],
        "nprobe": nprobe, "bandwidth": common["bandwidth"], "decode": decode, "prefill": prefill,
        "questions": questions, "rounds": rounds, "data": [corpus.name for corpus in corpora],
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps({"conditions": conditions, "pipelines": results}))
    else:
        _print(results, conditions)
    if not all(row["identical"] for row in results):
        raise EdgeError("lookahead changed what was found")


def _row(
    pipeline: str, on_demand: Sequence[Sequence[dict[str, Any]]], ahead: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    """Means over questions, medians over rounds."""

    def mean(reports: Sequence[Sequence[dict[str, Any]]], *counters: str) -> float:
        """Of counters' sums per question, or of seconds."""

        def value(row: dict[str, Any]) -> float:
            return float(sum(row["counters"].get(name, 0.0) for name in counters) if counters else row["seconds"])

        return statistics.median(statistics.mean(map(value, report)) for report in reports)

    coverage = [share for report in ahead for row in report for share in row["coverage"]]

    def behind(reports: Sequence[Sequence[dict[str, Any]]]) -> float:
        """What searches waited that follow a generation, per question: the others have nothing to hide behind."""
        return statistics.median(
            statistics.mean(
                _hideable(row["stalls"], guide["windows"])[0] for row, guide in zip(r, ahead[0], strict=True)
            )
            for r in reports
        )

    hideable = statistics.mean(
        _hideable(row["stalls"], guide["windows"])[1] for row, guide in zip(on_demand[0], ahead[0], strict=True)
    )
    seconds = mean(on_demand), mean(ahead)
    stall = mean(on_demand, f"{_LINK}.stall_s"), mean(ahead, f"{_LINK}.stall_s")
    search = mean(on_demand, "assistant.search_s"), mean(ahead, "assistant.search_s")
    hits = [mean(reports, "index.hits") for reports in (on_demand, ahead)]
    probed = [mean(reports, "index.hits", "index.lists_read") for reports in (on_demand, ahead)]
    same = [[(row["found"], row["text"]) for row in report] for report in (*on_demand, *ahead)]
    return {
        "pipeline": pipeline,
        "seconds": seconds,
        "speedup": seconds[0] / seconds[1],
        "bound": seconds[0] / (seconds[0] - hideable),
        "stall_s": stall,
        "stall_behind_s": (behind(on_demand), behind(ahead)),
        "search_s": search,
        "hit_rate": [hit / max(1e-9, all_) for hit, all_ in zip(hits, probed, strict=True)],
        "coverage": statistics.mean(coverage) if coverage else None,
        "identical": all(report == same[0] for report in same),
    }


def _hideable(stalls: Sequence[float], windows: Sequence[float | None]) -> tuple[float, float]:
    """Of one question: what its searches waited that follow a generation, and how much of it fits into the windows, if
    every prediction were right.

    Args:
        stalls: of each search.
        windows: see `IndexLibrary.windows`; the searches of a batch share one.
    """
    waited = hidden = left = 0.0
    for stall, window in zip(stalls, windows, strict=True):
        if window is not None:
            left = window or left
            waited += stall
            hidden += min(stall, left)
            left -= min(stall, left)
    return waited, hidden


def _print(results: Sequence[dict[str, Any]], conditions: dict[str, Any]) -> None:
    c = conditions
    click.echo(
        f"{c['rows']:,} vectors of {', '.join(c['data'])} (beyond the real ones, copies at cosine {COPY_COSINE}), "
        f"{c['lists']} lists, {format_size(c['index_bytes'])} over a link of {format_size(c['bandwidth'])}/s; "
        f"{format_size(c['list_memory'])} of lists in memory; {c['nprobe']} lists probed; replay at "
        f"{c['prefill']:.0f} and {c['decode']:.0f} tokens/s; means of {c['questions']} questions, "
        f"medians of {c['rounds']} rounds"
    )
    click.echo(
        f"{'':12}{'on demand':>11}{'ahead':>8}{'speedup':>9}{'bound':>7}{'stall':>8}{'ahead':>8}{'share':>7}"
        f"{'behind':>8}{'hits':>7}{'ahead':>7}{'coverage':>10}{'paper':>7}  same results"
    )
    for row in results:
        coverage = "-" if row["coverage"] is None else f"{row['coverage']:.0%}"
        click.echo(
            f"{row['pipeline']:12}{row['seconds'][0]:9.2f} s{row['seconds'][1]:6.2f} s{row['speedup']:9.2f}"
            f"{row['bound']:7.2f}"
            f"{row['stall_s'][0]:6.2f} s{row['stall_s'][1]:6.2f} s{_share([row], 'stall_s'):>7}"
            f"{_share([row], 'stall_behind_s'):>8}"
            f"{row['hit_rate'][0]:7.0%}{row['hit_rate'][1]:7.0%}{coverage:>10}{_PAPER_COVERAGE[row['pipeline']]:7.0%}"
            f"  {'yes' if row['identical'] else 'NO'}"
        )
    mean = {name: statistics.mean(row[name] for row in results) for name in ("speedup", "bound")}
    click.echo(
        f"mean speedup {mean['speedup']:.2f} of {mean['bound']:.2f} if every prediction were right (bound); over all "
        f"pipelines the stall is {_share(results, 'stall_s')} of on-demand's, and "
        f"{_share(results, 'stall_behind_s')} where a search follows a generation (behind): a first search with the "
        f"bare question has nothing to hide behind"
    )


def _share(results: Sequence[dict[str, Any]], name: str) -> str:
    """Stall with lookahead as a share of that without."""
    on_demand, ahead = (sum(row[name][arm] for row in results) for arm in (0, 1))
    return f"{ahead / on_demand:.0%}" if on_demand else "-"
