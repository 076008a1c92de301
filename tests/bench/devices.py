"""`devices`: six pipelines over lists in a slow place, with a throttled device or a GPU in front of it (TeleRAG).

The rates of the throttled device follow from the proportions of the paper's machines (Lin et al. 2025). Its index has
61 GB in 4,096 clusters, of which a search probes 256. The text used here lacks the hit rates of its table 3, so a
measured hit rate stands beside the table's budgets and beside the coverage of table 1.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import click

from bench.assistant import answered, options_of
from bench.figures import Figure, lower, neither, tabulate
from bench.options import Computing, Names, Output, benchmark, stated
from bench.process import Stops, measure, say
from bench.rag_index import IndexData, IndexLibrary
from bench.rag_index import opened as opened_index
from bench.rag_traces import PIPELINES, SHIPPED, computing, pace, replayed, write_recorded, write_trace
from edge.apps.assistant.steps import Steps
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.ivf.device import open_device
from edge.runtimes.embedder import Embedder
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

INDEX_GB = 61.0
PROBED = 256 / 4096
"""The share of the lists that a search probes."""

DEVICE_MEMORY = 1 / 6
"""The device's memory as a share of the index: 10 GB of 61 (section 5.2, desktop with the 3B model)."""

SEVERAL_MEMORY = 24 / 61
"""The same for each of several devices (section 5.2, 24 GB on Server2)."""

COVERAGE = {
    "hyde": 0.731, "subquestion": 0.632, "iterative": 0.915, "iter-retgen": 0.838, "flare": 0.791, "self-rag": 1.0,
}  # fmt: skip
"""Table 1, NQ: the share of the finally probed lists that are among as many lists nearest to the prediction."""

CACHE_GAINS = {1: 0.02, 2: 0.12, 4: 0.21, 8: 0.18}
"""Figure 13: what cached lists and the assignment of micro-batches by them add to the throughput, by devices."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of the link, of a scan on the device, and of a scan in the slow place."""

    link: float
    scan: float
    slow: float


@dataclass(frozen=True, slots=True)
class Proportions:
    """One machine of the paper, in GB/s: its link (table 2), the scan of its device, taken to be the bandwidth of its
    memory (data sheet), and the scan of its host. `budgets` are the GB that are fetched ahead in each pipeline (table
    3): as much as the link moves while the model writes."""

    name: str
    link: float
    scan: float
    slow: float
    budgets: Mapping[str, float]

    def rates(self, probed_nbytes: float, window: float, pipelines: Collection[str] = ()) -> Rates:
        """The rates at which an index behaves like the paper's, if a search probes `probed_nbytes` of lists and the
        generation before it takes `window` seconds on average."""
        budget = statistics.mean(self.budgets[pipeline] for pipeline in pipelines or self.budgets)
        link = budget / (INDEX_GB * PROBED) * probed_nbytes / window
        return Rates(link, link * self.scan / self.link, link * self.slow / self.link)


_DESKTOP_SLOW = 1.03 / (1 / 32 + 1 / 1008)
"""GB/s: copying lists when they are needed and searching them on the device takes 3 % longer than searching them in the
slow place (section 3.2)."""

_HOST_MEMORY = 460.8 / 204.8
"""Bandwidth of the server's host memory (12 channels of DDR5-4800) over the desktop's (8 of DDR4-3200). The paper gives
no time of a search on the server's host, so that its scan is taken to be faster by this factor."""

_BUDGETS: Mapping[str, Mapping[str, float]] = {
    "desktop": {"hyde": 7, "subquestion": 7, "iterative": 3, "iter-retgen": 2.5, "flare": 3, "self-rag": 1.25},
    "h100": {"hyde": 9, "subquestion": 8, "iterative": 5, "iter-retgen": 4, "flare": 6, "self-rag": 3},
}

PROPORTIONS = {
    "desktop": Proportions("RTX 4090 desktop, Llama 3B", 32, 1008, _DESKTOP_SLOW, _BUDGETS["desktop"]),
    "h100": Proportions("H100 server, Llama 8B", 64, 3350, _DESKTOP_SLOW * _HOST_MEMORY, _BUDGETS["h100"]),
}

_PROCESS_MEMORY = 8 << 30
_LATE = 1e-3
"""A search is late if it waits longer than this many seconds for the link."""

_ARMS: Mapping[str, dict[str, Any]] = {
    "slow place": {"device": "", "lookahead": False},
    "copies": {"device": "filled", "lookahead": False},
    "ahead and copies": {"device": "filled", "lookahead": True},
}
"""The arms. In `slow place` the host scans every list. In `copies` a search first copies the lists to the device. In
`ahead and copies` searches copy the lists that lookahead has left out."""


@benchmark
def devices(
    *,
    machine: Annotated[
        str,
        click.Choice(list(PROPORTIONS)),
        "--proportions",
        "The paper's machine whose ratios of link, scans and generation the device gets.",
    ] = "desktop",
    decode: Annotated[float, "Tokens per second the replayed model writes."] = 200.0,
    prefill: Annotated[float, "Tokens per second it reads."] = 20000.0,
    shape: Computing = None,
    questions: Annotated[int, "Measured per pipeline."] = 12,
    warmup: Annotated[int, "Before them; times are learned."] = 4,
    pipelines: Annotated[Sequence[str], Names(PIPELINES)] = PIPELINES,
    arms: Annotated[Sequence[str], Names(_ARMS), "`slow place` is always measured."] = tuple(_ARMS),
    on: Annotated[
        str, click.Choice(["limited", "webgpu"]), "The device: `webgpu` has the speed that its GPU has."
    ] = "limited",
    assembled: Annotated[bool, "Replay texts of the judged set, in place of SmolLM2-135M's."] = False,
    output: Output,
    data: Annotated[IndexData, {"rows": 100_000, "list_rows": 100, "memory_share": round(DEVICE_MEMORY, 3)}],
) -> None:
    """Replay recorded pipelines over lists in a slow place, with a device in front of it."""
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
        "nbytes": made.nbytes, "cap": made.memory, "prefill": prefill, "decode": decode, "on": on,
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
            report = measure(work, task, threads=1)
            reports[arm] = report["rows"][pipeline][warmup:]
        results.append(_row(pipeline, reports, proportions, made.nbytes))
    conditions = {
        "device": report["hardware"] or "limited (throttled test device, no GPU)",
        "proportions": machine, **made.conditions(),
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
    """Seconds of the generation before a search: the mean of the pipelines' means. The traces are replayed without
    waiting."""
    task = {
        **common, **_ARMS["slow place"], "name": "lengths of the replies", "prefill": None, "decode": None,
        "computes": None,
        "slow": float(common["nbytes"] << 10), "traces": {name: str(path) for name, path in traces.items()},
    }  # fmt: skip
    found = measure(work, task, threads=1)["rows"]
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
    folder, trace = Path(task["folder"]), Trace()
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        host = LimitedDevice(process, cap=2 * task["nbytes"] + (64 << 20), bandwidth=math.inf, scan=task["slow"])
        stack.callback(host.close)
        places: dict[str, Any] = {}
        if task["device"]:
            own = {"bandwidth": task["link"], "scan": task["scan"]} if task["on"] == "limited" else {"always": True}
            device: Any = open_device(task["on"], process, cap=task["cap"], trace=trace, **own)
            stack.callback(device.close)
            places = {"places": [device]}
        embedder = stack.enter_context(Embedder(budget=process))
        index, database = stack.enter_context(
            opened_index(folder, embedder.dim, process, trace=trace, device=host, **places)
        )
        task["hardware"] = getattr(device, "hardware", "") if task["device"] else ""
        yield IndexLibrary(folder, index, database, embedder, share=task["share"], reuse=True, trace=trace)


def work(task: dict[str, Any]) -> dict[str, Any]:
    with opened(task) as library, Stops() as stops:
        rows = {
            pipeline: _replayed(task, library, stops, pipeline, trace) for pipeline, trace in task["traces"].items()
        }
        return {"rows": rows, "nprobe": library.nprobe, "hardware": task["hardware"]}


def _replayed(
    task: dict[str, Any], library: IndexLibrary, stops: Stops, pipeline: str, trace: str
) -> list[dict[str, Any]]:
    predictor = TimePredictor()
    options = options_of(task)
    replay = replayed(task, trace, library.budget)
    found = []
    for question in task["questions"]:
        stopped = stops.seconds
        row = answered(library, question, Steps(library, replay, options, pipeline=pipeline, predictor=predictor))
        counters = row.pop("counters")
        places = [name for name in counters if re.fullmatch(r"lists on .+\.hits", name)]
        on_device = sum(counters[name] for name in places)
        row |= {
            "stopped_s": stops.seconds - stopped,
            "search_s": counters["assistant.search_s"],
            "generate_s": counters["assistant.generate_s"],
            "embed_s": counters.get("assistant.embed_s", 0.0),
            "probed": counters["index.hits"] + counters["index.lists_read"],
            "on_device": on_device,
            "sent": counters.get("link.bytes", 0.0) + counters.get("webgpu link.bytes", 0.0),
            "late": sum(search["stall"] > _LATE for search in row["searches"]),
        }
        found.append(row)
    return found
