"""`devices`: six pipelines over lists in a slow place, with a throttled device in front of it (TeleRAG)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.computed_replay import computing, pace
from bench.figures import Figure, lower, neither, tabulate
from bench.options import Output, compute_option, names_option, output_options, stated
from bench.process import Stops, measure
from bench.proportions import COVERAGE, DEVICE_MEMORY, INDEX_GB, PROBED, PROPORTIONS, Proportions
from bench.rag_index import IndexData, index_options, opened_index, say
from bench.rag_traces import PIPELINES, SHIPPED, write_recorded, write_trace
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.runtimes.embedder import Embedder
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

if TYPE_CHECKING:
    from bench.assistant_worker import IndexLibrary

_PROCESS_MEMORY = 8 << 30
_LATE = 1e-3
"""A search is late if it waits longer than this many seconds for the link."""

_ARMS: Mapping[str, dict[str, Any]] = {
    "slow place": {"device": "", "lookahead": False},
    "copies": {"device": "filled", "lookahead": False},
    "ahead": {"device": "ahead alone", "lookahead": True},
    "ahead and copies": {"device": "filled", "lookahead": True},
}
"""The arms. In `slow place` the host scans every list. In `copies` a search first copies the lists to the device. In
`ahead` lookahead alone fills the device, and the host scans the other lists meanwhile, as in the paper. In `ahead and
copies` searches copy the lists that lookahead has left out."""


@click.command("devices")
@index_options(rows=100_000, list_rows=100, memory_share=round(DEVICE_MEMORY, 3))
@click.option(
    "--proportions", "machine", type=click.Choice(list(PROPORTIONS)), default="desktop", show_default=True,
    help="The paper's machine whose ratios of link, scans and generation the device gets.",
)  # fmt: skip
@click.option("--decode", default=200.0, show_default=True, help="Tokens per second the replayed model writes.")
@click.option("--prefill", default=20000.0, show_default=True, help="Tokens per second it reads.")
@compute_option
@click.option("--questions", default=12, show_default=True, help="Measured per pipeline.")
@click.option("--warmup", default=4, show_default=True, help="Before them; times are learned.")
@names_option("--pipelines", PIPELINES)
@names_option("--arms", _ARMS, help="`slow place` is always measured.")
@click.option("--assembled", is_flag=True, help="Replay texts of the judged set, in place of SmolLM2-135M's.")
@output_options
def devices(
    machine: str,
    decode: float,
    prefill: float,
    shape: str | None,
    questions: int,
    warmup: int,
    pipelines: list[str],
    arms: list[str],
    assembled: bool,
    output: Output,
    data: IndexData,
) -> None:
    """Replay recorded pipelines over lists in a slow place, with a throttled device (`limited`) in front of it."""
    taken = list(dict.fromkeys(["slow place", *arms]))
    made = data.made()
    asked = made.asked(warmup + questions)
    traces = {}
    for pipeline in PIPELINES:
        traces[pipeline] = made.folder / f"devices-{pipeline}.jsonl"
        if assembled:
            write_trace(traces[pipeline], pipeline, asked, prefill=prefill, decode=decode)
        else:
            write_recorded(traces[pipeline], SHIPPED / f"{pipeline}.jsonl", asked)
    proportions = PROPORTIONS[machine]
    common = {
        "folder": str(made.folder), "questions": [case.question for case in asked], "share": PROBED,
        "nbytes": made.nbytes, "cap": made.memory, "prefill": prefill, "decode": decode,
        **computing(shape, data.work_dir),
    }  # fmt: skip
    window = _window(common, traces)
    rates = proportions.rates(made.nbytes * PROBED, window)
    common |= {"link": rates.link, "scan": rates.scan, "slow": rates.slow}
    results = []
    for pipeline in pipelines:
        reports = {}
        for arm in taken:
            say(f"{pipeline}, {arm}")
            task = {**common, **_ARMS[arm], "name": arm, "traces": {pipeline: str(traces[pipeline])}}
            report = measure(__name__, task, threads=1)
            reports[arm] = report["rows"][pipeline][warmup:]
        results.append(_row(pipeline, reports, proportions, made.nbytes))
    conditions = {
        "device": "limited (throttled test device, no GPU)", "proportions": machine, **made.conditions(),
        "device_bytes": made.memory, "nprobe": report["nprobe"], "window_s": window,
        "link": rates.link, "scan": rates.scan, "slow": rates.slow, **pace(shape, prefill, decode),
        "questions": questions,
        "traces": "assembled" if assembled else "SmolLM2-135M-Instruct",
    }  # fmt: skip
    result = {"conditions": conditions, "pipelines": results}
    output.put(result, figures(results), stated(conditions))
    if not all(row["identical"] for row in results):
        raise EdgeError("a device changed what was found")


def _window(common: dict[str, Any], traces: Mapping[str, Path]) -> float:
    """Seconds of the generation before a search: the mean of the pipelines' means.

    The traces are replayed without waiting, and the tokens between two searches are counted. A first search that no
    generation precedes does not count.
    """
    task = {
        **common, **_ARMS["slow place"], "name": "lengths of the replies", "prefill": None, "decode": None,
        "computes": None,
        "slow": float(common["nbytes"] << 10), "traces": {name: str(path) for name, path in traces.items()},
    }  # fmt: skip
    found = measure(__name__, task, threads=1)["rows"]
    searches = {name: [search for row in rows for search in row["searches"]] for name, rows in found.items()}
    means = (
        statistics.mean(
            search["written"] / common["decode"] + search["prompted"] / common["prefill"]
            for search in own
            if search["written"]
        )
        for own in searches.values()
    )
    return float(statistics.mean(means))


def _row(
    pipeline: str, reports: Mapping[str, Sequence[dict[str, Any]]], proportions: Proportions, nbytes: int
) -> dict[str, Any]:
    """The figures of one pipeline, for each arm: means over the questions during which no arm stood still."""
    whole = [all(row["stopped_s"] == 0 for row in rows) for rows in zip(*reports.values(), strict=True)]
    if not any(whole):
        raise EdgeError(f"{pipeline}: the machine stood still during every question; measure again")
    reports = {arm: list(compress(rows, whole)) for arm, rows in reports.items()}
    slow = reports["slow place"]

    def mean(arm: str, name: str) -> float:
        return statistics.mean(float(row[name]) for row in reports[arm])

    def hits(arm: str) -> float:
        return float(sum(row["on_device"] for row in reports[arm]) / sum(row["probed"] for row in reports[arm]))

    def predicted(arm: str) -> float:
        """The mean bytes that came to the device for one search that a generation precedes, as a share of the index."""
        searches = sum(bool(search["window"]) for row in reports[arm] for search in row["searches"])
        return float(sum(row["sent"] for row in reports[arm])) / max(1, searches) / nbytes

    coverage = [share for rows in reports.values() for row in rows for share in row["coverage"]]
    return {
        "pipeline": pipeline,
        "seconds": {arm: mean(arm, "seconds") for arm in reports},
        "search_s": {arm: mean(arm, "search_s") for arm in reports},
        "embed_s": {arm: mean(arm, "embed_s") for arm in reports},
        "speedup": {arm: mean("slow place", "seconds") / mean(arm, "seconds") for arm in reports},
        "bound": 1 / (1 - mean("slow place", "search_s") / mean("slow place", "seconds")),
        "questions": len(slow),
        "hit_rate": {arm: hits(arm) for arm in reports},
        "sent": {arm: predicted(arm) for arm in reports},
        "paper_budget": proportions.budgets[pipeline] / INDEX_GB,
        "coverage": statistics.mean(coverage) if coverage else None,
        "paper_coverage": COVERAGE[pipeline],
        "late": {arm: sum(row["late"] for row in rows) for arm, rows in reports.items()},
        "asked": sum(len(row["searches"]) for row in slow),
        "identical": all(
            [(row["found"], row["text"]) for row in rows] == [(row["found"], row["text"]) for row in slow]
            for rows in reports.values()
        ),
    }


def figures(results: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The figures of a stored run, by pipeline and arm."""
    rows = {row["pipeline"]: row for row in results}
    arms = list(results[0]["seconds"])
    yield from tabulate(rows, {f"seconds.{arm}": lower(arm, "s") for arm in arms}, "time of a question")
    yield from tabulate(rows, {f"hit_rate.{arm}": neither(arm, "%") for arm in arms}, "probed lists on the device")
    yield from tabulate(rows, {f"speedup.{arm}": neither(arm) for arm in arms[1:]}, "speedup over the slow place")
    columns = {
        "bound": neither("speedup without searches"), "coverage": neither("coverage", "%"),
        "paper_coverage": neither("coverage, paper's", "%"), "paper_budget": neither("sent ahead, paper's", "%"),
    }  # fmt: skip
    yield from tabulate(rows, columns, "conditions")


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[IndexLibrary]:
    """Opens the task's index. A `limited` device with room for all lists stands for the host, and scans at the slow
    rate. If the arm has a device, another `limited` stands in front of it."""
    from bench.assistant_worker import IndexLibrary  # imports the whole assistant

    folder, trace = Path(task["folder"]), Trace()
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        host = LimitedDevice(process, cap=2 * task["nbytes"] + (64 << 20), bandwidth=math.inf, scan=task["slow"])
        stack.callback(host.close)
        places: dict[str, Any] = {}
        if task["device"]:
            device = LimitedDevice(
                process, cap=task["cap"], bandwidth=task["link"], scan=task["scan"], trace=trace
            )  # fmt: skip
            stack.callback(device.close)
            places = {"fast": device} if task["device"] == "ahead alone" else {"places": [device]}
        embedder = stack.enter_context(Embedder(budget=process))
        index, database = stack.enter_context(
            opened_index(folder, embedder.dim, process, trace=trace, device=host, **places)
        )
        yield IndexLibrary(folder, index, database, embedder, share=task["share"], reuse=True, trace=trace)


def work(task: dict[str, Any]) -> dict[str, Any]:
    """The worker's side: replays the trace of each of the task's pipelines, question after question."""
    with opened(task) as library, Stops() as stops:
        rows = {
            pipeline: _replayed(task, library, stops, pipeline, trace) for pipeline, trace in task["traces"].items()
        }
        return {"rows": rows, "nprobe": library.nprobe}


def _replayed(
    task: dict[str, Any], library: IndexLibrary, stops: Stops, pipeline: str, trace: str
) -> list[dict[str, Any]]:
    from bench.assistant_worker import answered, options_of, replayed
    from edge.apps.assistant.steps import Steps

    predictor = TimePredictor()
    options = options_of(task)
    replay = replayed(task, trace, library.budget)
    found = []
    for question in task["questions"]:
        stopped = stops.seconds
        row = answered(library, question, Steps(library, replay, options, pipeline=pipeline, predictor=predictor))
        counters = row.pop("counters")
        on_device = counters.get("fast.hits", 0.0) + counters.get("lists on limited cpu.hits", 0.0)
        row |= {
            "stopped_s": stops.seconds - stopped,
            "search_s": counters["assistant.search_s"],
            "generate_s": counters["assistant.generate_s"],
            "embed_s": counters.get("assistant.embed_s", 0.0),
            "probed": counters["index.hits"] + counters["index.lists_read"],
            "on_device": on_device,
            "sent": counters.get("link.bytes", 0.0),
            "late": sum(search["stall"] > _LATE for search in row["searches"]),
        }
        found.append(row)
    return found
