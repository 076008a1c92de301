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
from edge.apps.bench.rag_traces import PIPELINES, Case, cases, write_recorded, write_trace
from edge.config import format_size, parse_size
from edge.errors import EdgeError, InputError
from edge.models.registry import models_dir
from edge.models.training.corpora import load

_WORKER = "edge.apps.bench.assistant_worker"
_PAPER_COVERAGE = {
    "hyde": 0.731, "subquestion": 0.632, "iterative": 0.915, "iter-retgen": 0.838, "flare": 0.791, "self-rag": 1.0,
}  # fmt: skip
"""TeleRAG, table 1, NQ: lists probed in the end that are among as many nearest to the prediction (256 of 4096)."""

_ARMS = {
    "read anew": {"lookahead": False, "reuse": False},
    "on demand": {"lookahead": False, "reuse": True},
    "lookahead": {"lookahead": True, "reuse": True},
}
"""Each search reads its lists, as in TeleRAG's baseline; it finds those that earlier ones left in memory; and lookahead
beside that."""


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
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of recorded traces, one file for each pipeline; put together from the judged set if not given.",
)
@click.option(
    "--record",
    "model",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="First have this GGUF model answer the questions, and keep what it writes in the folder of --traces.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")  # fmt: skip
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
    traces: Path | None,
    model: Path | None,
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
        "prefill": prefill, "decode": decode,
    }  # fmt: skip
    if model is not None:
        if traces is None:
            raise click.BadParameter("--record needs --traces, the folder to write to")
        _record(model, traces, chosen, asked, common)
    results = []
    for pipeline in chosen:
        trace = place / f"{pipeline}.jsonl"
        if traces is None:
            write_trace(trace, pipeline, asked, prefill=prefill, decode=decode)
        else:
            write_recorded(trace, traces / trace.name, asked)
        arms: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in _ARMS}
        for turn in range(rounds):
            for name, reports in arms.items():
                click.echo(f"round {turn + 1} of {rounds}: {pipeline}, {name}", err=True)
                task = {**common, **_ARMS[name], "name": name, "trace": str(trace), "pipeline": pipeline}
                report = measure(_WORKER, task, threads=1)
                nprobe = report["nprobe"]
                reports.append(report["rows"][warmup:])
        results.append(_row(pipeline, *arms.values()))
    conditions = {
        "rows": held, "lists": lists, "index_bytes": nbytes, "list_memory": common["list_memory"],
        "nprobe": nprobe, "bandwidth": common["bandwidth"], "decode": decode, "prefill": prefill,
        "questions": questions, "rounds": rounds, "data": [corpus.name for corpus in corpora],
        "traces": "assembled" if traces is None else str(traces),
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps({"conditions": conditions, "pipelines": results}))
    else:
        _print(results, conditions)
    if not all(row["identical"] for row in results):
        raise EdgeError("lookahead changed what was found")


def _record(model: Path, traces: Path, pipelines: Sequence[str], asked: Sequence[Case], common: dict[str, Any]) -> None:
    """Has a model answer the questions, without lookahead, and keeps what it writes."""
    traces.mkdir(parents=True, exist_ok=True)
    for pipeline in pipelines:
        click.echo(f"recording: {pipeline}", err=True)
        task = {
            **common, **_ARMS["on demand"], "name": f"recording {pipeline}", "pipeline": pipeline, "model": str(model),
            "trace": str(traces / f"{pipeline}.jsonl"), "ids": [case.id for case in asked], "threads": 2,
            "bandwidth": 1e12,
        }  # fmt: skip
        measure(_WORKER, task, threads=2)


def _row(
    pipeline: str,
    anew: Sequence[Sequence[dict[str, Any]]],
    on_demand: Sequence[Sequence[dict[str, Any]]],
    ahead: Sequence[Sequence[dict[str, Any]]],
) -> dict[str, Any]:
    """Means over questions, medians over rounds; lists are in the order of the arms."""
    arms = (anew, on_demand, ahead)

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
    seconds = [mean(reports) for reports in arms]
    probed = [mean(reports, "index.hits", "index.lists_read") for reports in arms]
    hits = [mean(reports, "index.hits") / max(1e-9, lists) for reports, lists in zip(arms, probed, strict=True)]
    same = [[(row["found"], row["text"]) for row in report] for reports in arms for report in reports]
    return {
        "pipeline": pipeline,
        "seconds": seconds,
        "speedup": [seconds[0] / seconds[2], seconds[1] / seconds[2]],
        "bound": seconds[1] / (seconds[1] - hideable),
        "stall_s": [mean(reports, f"{_LINK}.stall_s") for reports in arms],
        "stall_behind_s": [behind(reports) for reports in arms],
        "search_s": [mean(reports, "assistant.search_s") for reports in arms],
        "hit_rate": hits,
        "coverage": statistics.mean(coverage) if coverage else None,
        "identical": all(report == same[0] for report in same),
    }


def _hideable(stalls: Sequence[float], windows: Sequence[float | None]) -> tuple[float, float]:
    """Of one question: what its searches waited that follow a generation, and how much of it fits into the windows, if
    every prediction were right.

    Args:
        stalls: of each search.
        windows: see `IndexLibrary.windows`.
    """
    pairs = [(stall, window) for stall, window in zip(stalls, windows, strict=True) if window is not None]
    return sum(stall for stall, _ in pairs), sum(map(min, pairs))


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
        f"{'':12}{'anew':>8}{'on demand':>11}{'ahead':>8}{'speedups':>12}{'bound':>7}{'stall':>8}{'on demand':>11}"
        f"{'ahead':>8}{'behind':>8}{'hits':>7}{'ahead':>7}{'coverage':>10}{'paper':>7}  same results"
    )
    for row in results:
        coverage = "-" if row["coverage"] is None else f"{row['coverage']:.0%}"
        seconds, stall = row["seconds"], row["stall_s"]
        click.echo(
            f"{row['pipeline']:12}{seconds[0]:6.2f} s{seconds[1]:9.2f} s{seconds[2]:6.2f} s"
            f"{row['speedup'][0]:7.2f}{row['speedup'][1]:5.2f}{row['bound']:7.2f}"
            f"{stall[0]:6.2f} s{stall[1]:9.2f} s{stall[2]:6.2f} s{_share([row], 'stall_behind_s', 1):>8}"
            f"{row['hit_rate'][1]:7.0%}{row['hit_rate'][2]:7.0%}{coverage:>10}{_PAPER_COVERAGE[row['pipeline']]:7.0%}"
            f"  {'yes' if row['identical'] else 'NO'}"
        )
    anew, on_demand = (statistics.mean(row["speedup"][arm] for row in results) for arm in (0, 1))
    bound = statistics.mean(row["bound"] for row in results)
    click.echo(
        f"mean speedup {anew:.2f} over reading every list anew, and {on_demand:.2f} over reading on demand what is not "
        f"in memory ({bound:.2f} if every prediction were right: bound). Over all pipelines searches wait "
        f"{_share(results, 'stall_s', 0)} and {_share(results, 'stall_s', 1)} of the time they wait there; those that "
        f"follow a generation {_share(results, 'stall_behind_s', 0)} and {_share(results, 'stall_behind_s', 1)} "
        f"(behind): a first search with the bare question has nothing to hide behind"
    )


def _share(results: Sequence[dict[str, Any]], name: str, arm: int) -> str:
    """Waits with lookahead as a share of those of another arm."""
    other, ahead = (sum(row[name][i] for row in results) for i in (arm, 2))
    return f"{ahead / other:.0%}" if other else "-"
