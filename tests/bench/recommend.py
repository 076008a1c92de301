"""`recommend`: a small recommender with embedding tables in banks, each by itself and joined in pairs (MicroRec).

The tables of a click model lie in a file of this machine, whose used rows are cached, and then in several banks with a
throttled link (`limited`). Where tables are joined is planned as by `edge plan banks`, from times measured here. Clicks
are predicted from the rows that were looked up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np

from bench import click_model
from bench.bank_lookup import Bank, BankLookup, DeviceBank, FileBank
from bench.click_model import ClickModel, Clicks, Floats
from bench.figures import Figure, higher, neither, tabulate
from bench.options import Output, benchmark, stated
from edge.apps.options import FiniteRange
from edge.budget import MemoryBudget
from edge.config import Config, format_duration, parse_size
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.files.output_file import make_folder
from edge.link import Lane
from edge.planner.bank_placement import BankPlacement, Banks, EmbeddingTable, placed
from edge.resident import ResidentWatch
from edge.trace import Trace

_TRAINED_ON = 100_000
_PASSES = 3
_SEED = 0
_ROUNDS = 5
"""Number of times that all requests are looked up with each placement, in turns. Rates are medians."""

_PROBE = 20
"""Number of batches that measure an access, from which the placement is planned."""

_CACHED_ROWS = 512
"""Rows of each table in a file that stay in memory."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Memory in which the tables lie.

    Attributes:
        banks: its number and sizes; times are measured before the placement is planned.
        cached: rows of each table of a bank that stay in memory.
        opened: opens the banks for one placement, in a new folder or on new devices.
    """

    name: str
    banks: Banks
    cached: int
    opened: Callable[[ExitStack, MemoryBudget, Trace], Sequence[Bank]]


@benchmark
def recommend(
    *,
    requests: Annotated[int, click.IntRange(1000), "Requests looked up."] = 10_000,
    batch: Annotated[int, click.IntRange(1, 4096), "Requests at a time."] = 256,
    banks: Annotated[int, click.IntRange(1, 64), "Throttled banks."] = 6,
    latency: Annotated[float, FiniteRange(0), "Seconds of an access to them."] = 1e-4,
    near: Annotated[str, "Near memory for the smallest tables."] = "1KiB",
    memory: Annotated[str, "Limit of the process."] = "150MB",
    output: Output,
) -> None:
    """Train a click model on made-up clicks, and look its embedding tables up, each by itself and joined in pairs."""
    limit, scratch = parse_size(memory), Config.load().scratch_path
    make_folder(scratch)
    arms = list(_arms(scratch, banks, latency, parse_size(near)))
    with ResidentWatch() as watch:
        budget = MemoryBudget(limit)
        random = np.random.default_rng(_SEED)
        with budget.reserve("made-up clicks", click_model.memory_needed(_TRAINED_ON + requests)):
            truth = click_model.planted(random)
            started = time.perf_counter()
            model = click_model.trained(click_model.made(truth, _TRAINED_ON, random), rounds=_PASSES, random=random)
            trained_s = time.perf_counter() - started
            held_out = click_model.made(truth, requests, random)
            results = {arm.name: _measured(arm, model, held_out, batch, budget) for arm in arms}
            quality = {
                "predicted": next(iter(results.values()))["quality"],
                "planted truth": click_model.quality(held_out.chance, held_out.clicked),
            }
        watch.sample()
    stats = {
        "requests": requests, "batch": batch, "trained_s": trained_s, "peak_resident": watch.high_water,
        "memory_limit": limit,
    }  # fmt: skip
    tables = {name: len(rows) for name, rows in model.tables.items()}
    report = stats | {"tables": tables, "memory": results, "quality": quality}
    output.put(report, list(figures(report)), stated(stats), held=watch.high_water, limit=limit)


def figures(report: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run."""
    rates = {
        "near": neither("tables near"), "in_banks": neither("tables in banks"), "rounds": neither("rounds"),
        "nbytes": neither("storage", "B"), "planned_per_s": neither("planned", "/s"),
        "requests_per_s": higher("measured", "/s"),
    }  # fmt: skip
    for name, found in report["memory"].items():
        yield from tabulate({"each by itself": found["plain"], "joined in pairs": found["joined"]}, rates, name)
    quality = {"auc": neither("area under the ROC curve"), "log_loss": neither("logistic loss")}
    yield from tabulate(report["quality"], quality, "clicks predicted from the rows found")


def _arms(scratch: Path, count: int, latency: float, near: int) -> Iterator[Arm]:
    def in_file(opened: ExitStack, budget: MemoryBudget, trace: Trace) -> list[Bank]:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="edge-tables-", dir=scratch))
        lane = opened.enter_context(Lane.shared(trace=trace))
        return [FileBank(Path(folder) / "tables", lane)]

    def limited(opened: ExitStack, budget: MemoryBudget, trace: Trace) -> list[Bank]:
        found: list[Bank] = []
        for _ in range(count):
            device = LimitedDevice(budget, cap=size, bandwidth=1e9, latency=latency, trace=trace)
            opened.callback(device.close)
            found.append(DeviceBank(device))
        return found

    size = 2 << 20
    yield Arm("a file of this machine", Banks(count=1, nbytes=64 << 20, near=near), _CACHED_ROWS, in_file)
    name = f"{count} throttled banks (latency {format_duration(latency)})"
    yield Arm(name, Banks(count=count, nbytes=size, near=near), 1, limited)


def _measured(arm: Arm, model: ClickModel, requests: Clicks, batch: int, budget: MemoryBudget) -> dict[str, Any]:
    """Look-up rates of one memory with each table by itself and with joined tables."""
    tables = [EmbeddingTable(len(rows), rows.shape[1], (name,)) for name, rows in model.tables.items()]
    with _opened(arm, _probe(tables, arm.banks), model.tables, budget) as (lookup, trace):
        near, bank = _access_seconds(lookup, trace, requests, batch)
    banks = replace(arm.banks, fixed=bank, each=0.0, near_share=near / bank)
    placements = {"plain": placed(tables, banks, combine=False), "joined": placed(tables, banks)}
    seconds: dict[str, list[float]] = {name: [] for name in placements}
    chances: dict[str, Floats] = {}
    counted: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        opened = {name: stack.enter_context(_opened(arm, p, model.tables, budget)) for name, p in placements.items()}
        for _ in range(_ROUNDS):
            for name, (lookup, trace) in opened.items():
                taken, found = 0.0, []
                for start in range(0, len(requests.ids), batch):
                    began = time.perf_counter()
                    rows = lookup.vectors(requests.ids[start : start + batch])
                    taken += time.perf_counter() - began
                    found.append(model.chances(rows))
                seconds[name].append(taken)
                chances[name] = np.concatenate(found)
                counted[name] = trace.snapshot()
    if chances["plain"].tobytes() != chances["joined"].tobytes():
        raise EdgeError("joined tables gave other rows than single ones")
    return {
        "near_access_s": near, "bank_access_s": bank,
        "quality": click_model.quality(chances["plain"], requests.clicked),
        **{name: _row(p, seconds[name], counted[name], len(requests.ids), batch) for name, p in placements.items()},
    }  # fmt: skip


@contextmanager
def _opened(
    arm: Arm, placement: BankPlacement, tables: Mapping[str, Floats], budget: MemoryBudget
) -> Iterator[tuple[BankLookup, Trace]]:
    trace = Trace()
    with ExitStack() as stack:
        banks = arm.opened(stack, budget, trace)
        yield stack.enter_context(BankLookup(placement, tables, banks, budget, cached=arm.cached, trace=trace)), trace


def _probe(tables: Sequence[EmbeddingTable], banks: Banks) -> BankPlacement:
    """The placement that measures accesses: the smallest table in near memory, and the others over all banks."""
    ordered = sorted(tables, key=lambda table: table.nbytes)
    return BankPlacement(
        tuple(ordered[:1]), tuple(tuple(ordered[1 + bank :: banks.count]) for bank in range(banks.count)), 0.0
    )


def _access_seconds(lookup: BankLookup, trace: Trace, requests: Clicks, batch: int) -> tuple[float, float]:
    """Mean seconds of an access to a table in near memory and to one in a bank, for a batch, when caches are warm."""
    ids = requests.ids[: _PROBE * batch]
    before: dict[str, float] = {}
    for _ in range(2):
        before = trace.snapshot()
        for start in range(0, len(ids), batch):
            lookup.vectors(ids[start : start + batch])
    counters = trace.since(before)
    near, bank = (counters[f"lookup.{kind}_s"] / counters[f"lookup.{kind}"] for kind in ("near", "bank"))
    return near, bank


def _row(
    placement: BankPlacement, seconds: Sequence[float], counters: Mapping[str, float], requests: int, batch: int
) -> dict[str, Any]:
    joined = [t for bank in (placement.near, *placement.banks) for t in bank if len(t.parts) > 1]
    read = counters.get("rows.misses", 0.0)
    return {
        "requests_per_s": [requests / one for one in seconds], "planned_per_s": batch / placement.seconds,
        "near": len(placement.near), "in_banks": sum(map(len, placement.banks)), "rounds": placement.rounds,
        "nbytes": placement.nbytes, "joined": [list(table.parts) for table in joined],
        "rows_read": read / _ROUNDS, "rows_cached": counters.get("rows.hits", 0.0) / _ROUNDS,
    }  # fmt: skip
