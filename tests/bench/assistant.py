"""`assistant`: replays six pipelines over an index on disk, with and without lookahead (TeleRAG)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from bench.computed_replay import computing, pace
from bench.figures import Figure, lower, neither, tabulate
from bench.options import Output, compute_option, names_option, output_options, rounds_option, stated
from bench.process import measure
from bench.rag_index import LINK, IndexData, index_options
from bench.rag_traces import PIPELINES, SHIPPED, Case, write_recorded, write_trace
from edge.config import parse_size
from edge.errors import EdgeError

_WORKER = "bench.assistant_worker"
_ARMS = {
    "read anew": {"lookahead": False, "reuse": False},
    "on demand": {"lookahead": False, "reuse": True},
    "lookahead": {"lookahead": True, "reuse": True},
}
"""The three arms. In `read anew` every search reads its lists, as in TeleRAG's baseline; in `on demand` it also finds
lists that earlier searches left in memory; `lookahead` adds lookahead to that."""


@click.command("assistant")
@index_options()
@click.option(
    "--probe-share",
    type=float,
    help="Share of the lists that a search probes; by default, as many as recall 0.95 needs.",
)
@click.option("--bandwidth", default="12MB", show_default=True, help="Of the link to the index, per second.")
@click.option("--decode", default=100.0, show_default=True, help="Tokens per second the replayed model writes.")
@click.option("--prefill", default=2000.0, show_default=True, help="Tokens per second it reads.")
@compute_option
@click.option("--questions", default=16, show_default=True, help="Measured per pipeline.")
@click.option("--warmup", default=4, show_default=True, help="Before them; times are learned and lists cached.")
@rounds_option(1)
@names_option("--pipelines", PIPELINES)
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of recorded traces, one file for each pipeline; put together from the judged set if not given.",
)
@click.option(
    "--recorded", is_flag=True, help="Replay the texts that SmolLM2-135M wrote for 16 questions of squad11-dev."
)
@click.option(
    "--record",
    "model",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="First let this GGUF model answer the questions, and keep its texts in the folder of --traces.",
)
@click.option("--searches", is_flag=True, help="Print where the time of each search went, too; --json always has it.")
@output_options
def assistant(
    probe_share: float | None,
    bandwidth: str,
    decode: float,
    prefill: float,
    shape: str | None,
    questions: int,
    warmup: int,
    rounds: int,
    pipelines: list[str],
    traces: Path | None,
    recorded: bool,
    model: Path | None,
    searches: bool,
    output: Output,
    data: IndexData,
) -> None:
    """Replay recorded pipelines over an index on disk: on-demand retrieval against lookahead, same memory."""
    if recorded:
        if traces is not None:
            raise click.BadParameter("--recorded replays the traces that come with the program; leave --traces out")
        traces = SHIPPED
    made = data.made()
    asked = made.asked(warmup + questions)
    common = {
        "folder": str(made.folder), "questions": [case.question for case in asked], "probe_share": probe_share,
        "list_memory": made.memory, "bandwidth": parse_size(bandwidth),
        "prefill": prefill, "decode": decode, **computing(shape, data.work_dir),
    }  # fmt: skip
    if model is not None:
        if traces is None or recorded:
            raise click.BadParameter("--record needs --traces, the folder to write to")
        _record(model, traces, pipelines, asked, common)
    results = []
    for pipeline in pipelines:
        trace = made.folder / f"{pipeline}.jsonl"
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
        **made.conditions(), "list_memory": made.memory,
        "nprobe": nprobe, "bandwidth": common["bandwidth"], **pace(shape, prefill, decode),
        "questions": questions, "rounds": rounds,
        "traces": "assembled" if traces is None else "SmolLM2-135M-Instruct" if recorded else str(traces),
    }  # fmt: skip
    result = {"conditions": conditions, "pipelines": results}
    output.put(result, figures(results), stated(conditions))
    if searches and not output.as_json:
        for row in results:
            _print_searches(row)
    if not all(row["identical"] for row in results):
        raise EdgeError("lookahead changed what was found")


def _record(model: Path, traces: Path, pipelines: Sequence[str], asked: Sequence[Case], common: dict[str, Any]) -> None:
    """Lets a model answer the questions, without lookahead, and records its texts. The model runs in one thread,
    because the number of threads changes the last bits of its results, and sometimes a word."""
    traces.mkdir(parents=True, exist_ok=True)
    for pipeline in pipelines:
        click.echo(f"recording: {pipeline}", err=True)
        task = {
            **common, **_ARMS["on demand"], "name": f"recording {pipeline}", "pipeline": pipeline, "model": str(model),
            "trace": str(traces / f"{pipeline}.jsonl"), "ids": [case.id for case in asked], "threads": 1,
            "bandwidth": 1e12,
        }  # fmt: skip
        measure(_WORKER, task, threads=1)


def _row(
    pipeline: str,
    anew: Sequence[Sequence[dict[str, Any]]],
    on_demand: Sequence[Sequence[dict[str, Any]]],
    ahead: Sequence[Sequence[dict[str, Any]]],
) -> dict[str, Any]:
    """The figures of one pipeline: means over questions and medians over rounds. Lists are in the order of the arms."""
    arms = (anew, on_demand, ahead)

    def mean(reports: Sequence[Sequence[dict[str, Any]]], *counters: str) -> float:
        """The median of the means per question: of the sum of some counters, or of the seconds."""

        def value(row: dict[str, Any]) -> float:
            return float(sum(row["counters"].get(name, 0.0) for name in counters) if counters else row["seconds"])

        return statistics.median(statistics.mean(map(value, report)) for report in reports)

    coverage = [share for report in ahead for row in report for share in row["coverage"]]

    def behind(reports: Sequence[Sequence[dict[str, Any]]]) -> float:
        """The time per question that searches after a generation waited. Only behind a generation can reads be
        hidden."""
        return statistics.median(
            statistics.mean(float(sum(s["stall"] for s in row["searches"] if s["window"])) for row in report)
            for report in reports
        )

    hideable = statistics.median(statistics.mean(_hideable(row["searches"]) for row in report) for report in on_demand)
    seconds = [mean(reports) for reports in arms]
    probed = [mean(reports, "index.hits", "index.lists_read") for reports in arms]
    hits = [mean(reports, "index.hits") / max(1e-9, lists) for reports, lists in zip(arms, probed, strict=True)]
    same = [[(row["found"], row["text"]) for row in report] for reports in arms for report in reports]
    return {
        "pipeline": pipeline,
        "seconds": seconds,
        "speedup": [seconds[0] / seconds[2], seconds[1] / seconds[2]],
        "bound": seconds[1] / (seconds[1] - hideable),
        "hideable_s": hideable,
        "share": (seconds[1] - seconds[2]) / hideable if hideable else None,
        "stall_s": [mean(reports, f"{LINK}.stall_s") for reports in arms],
        "stall_behind_s": [behind(reports) for reports in arms],
        "search_s": [mean(reports, "assistant.search_s") for reports in arms],
        "hit_rate": hits,
        "coverage": statistics.mean(coverage) if coverage else None,
        "identical": all(report == same[0] for report in same),
        "searches": {name: _by_place(reports) for name, reports in zip(_ARMS, arms, strict=True)},
    }


def figures(results: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The figures of a stored run: seconds and waits of a question in each arm, by pipeline."""
    rows = {row["pipeline"]: row for row in results}
    for key, table in (("seconds", "time of a question"), ("stall_s", "waits of a question for the link")):
        by_arm = {name: dict(zip(_ARMS, row[key], strict=True)) for name, row in rows.items()}
        yield from tabulate(by_arm, {arm: lower(arm, "s") for arm in _ARMS}, table)
    columns = {"hideable_s": neither("perfect foresight would save", "s"), "share": neither("lookahead saves", "%")}
    yield from tabulate(rows, columns, "lookahead")


def _by_place(reports: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, float]]:
    """The mean figures of the first, second, ... search of a question, over all questions with that many searches."""
    rows = [row["searches"] for report in reports for row in report]
    places = []
    for place in range(max(map(len, rows), default=0)):
        there = [searches[place] for searches in rows if len(searches) > place]
        means = {name: statistics.mean(search[name] for search in there) for name in there[0]}
        places.append({"questions": len(there) / len(reports), **means})
    return places


def _hideable(searches: Sequence[dict[str, float]]) -> float:
    """The seconds of one question that perfect foresight would save: the wait of each search on demand, but at most the
    duration of the generation before it, which can hide it."""
    return sum((min(search["stall"], search["window"]) for search in searches), 0.0)


def _print_searches(row: dict[str, Any]) -> None:
    """Prints the times of a pipeline, on demand and with lookahead, a line for each search."""
    for arm in ("on demand", "lookahead"):
        click.echo(f"{row['pipeline']}, {arm}, means of the first, second, ... search:")
        for place, search in enumerate(row["searches"][arm], 1):
            values = "  ".join(f"{name} {value:.3g}" for name, value in search.items() if value)
            click.echo(f"  {place}: {values}")
