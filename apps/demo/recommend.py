"""`edge demo recommend`: a small recommender with embedding tables in banks, each by itself and joined (MicroRec)."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from edge.apps.demo import click_model
from edge.apps.demo.bank_lookup import Bank, BankLookup, DeviceBank, FileBank
from edge.apps.demo.click_model import ClickModel, Clicks, Floats
from edge.apps.options import FiniteRange, Setup, gathered, json_option, memory_option
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import format_duration, format_size, parse_size
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.files.output_file import make_folder
from edge.link import Lane
from edge.planner.bank_placement import BankPlacement, Banks, EmbeddingTable, placed
from edge.resident import ResidentWatch, anonymous_resident
from edge.trace import Trace

_DEMO_MEMORY = "150MB"
_TRAINED_ON = 100_000
_PASSES = 3
_SEED = 0
_ROUNDS = 5
"""Number of times that all requests are looked up with each placement, in turns. Rates are medians."""

_PROBE = 20
"""Number of batches that measure an access, from which the placement is planned."""

_CACHED_ROWS = 512
"""Rows of each table in a file that stay in memory."""

_STORAGE = 4 << 20
"""Bytes that no placement of the tables exceeds: all of them joined in pairs take 2 MB."""

_LOOKUPS = 2
"""Look-ups that are open at the same time: tables by themselves, and joined."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Memory in which the tables lie.

    Attributes:
        banks: its number and sizes; times are measured before the placement is planned.
        cached: rows of each table of a bank that stay in memory.
        held: bytes of the process's memory in which its banks lie.
        opened: opens the banks for one placement, in a new folder or on new devices.
    """

    name: str
    banks: Banks
    cached: int
    held: int
    opened: Callable[[ExitStack, MemoryBudget, Trace], Sequence[Bank]]

    @property
    def nbytes(self) -> int:
        """Memory that its look-ups hold at most."""
        row = 4 * click_model.DIM
        caches = _STORAGE // row * 4 + len(click_model.FEATURES) * self.cached * (2 * row + 16)
        return _LOOKUPS * (self.held + min(self.banks.near, _STORAGE) + caches)


@click.command("recommend")
@click.option("--requests", type=click.IntRange(1000), default=10_000, show_default=True, help="Requests looked up.")
@click.option("--batch", type=click.IntRange(1, 4096), default=256, show_default=True, help="Requests at a time.")
@click.option("--banks", "count", type=click.IntRange(1, 64), default=6, show_default=True, help="Throttled banks.")
@click.option("--latency", type=FiniteRange(0), default=1e-4, show_default=True, help="Seconds of an access.")
@click.option("--near", default="1KiB", show_default=True, help="Near memory for the smallest tables.")
@gathered("setup", Setup, memory_option)
@json_option
def recommend(requests: int, batch: int, count: int, latency: float, near: str, setup: Setup, as_json: bool) -> None:
    """Train a click model on made-up clicks, and look its embedding tables up, each by itself and joined in pairs.

    The tables lie in a file of this machine, whose used rows are cached, and then in several banks with a throttled
    link (`limited`). Where tables are joined is planned as by `edge plan banks`, from times measured here. Clicks are
    predicted from the rows that were looked up.
    """
    config = replace(setup, memory=setup.memory or _DEMO_MEMORY).config()
    make_folder(config.scratch_path)
    arms = list(_arms(config.scratch_path, count, latency, parse_size(near)))
    clicks_nbytes = click_model.memory_needed(_TRAINED_ON + requests)
    needed = OperationPlan(
        "the demonstration",
        (
            OperationStage("training on made-up clicks", kept=clicks_nbytes),
            OperationStage("looking rows up", own=max(arm.nbytes for arm in arms)),
        ),
    )
    with ResidentWatch() as watch:
        if (held := anonymous_resident()) + needed.nbytes > config.memory:
            raise needed.refusal(config.memory, held)
        budget = MemoryBudget(config.memory)
        random = np.random.default_rng(_SEED)
        with budget.reserve("made-up clicks", clicks_nbytes):
            truth = click_model.planted(random)
            started = time.perf_counter()
            model = click_model.trained(click_model.made(truth, _TRAINED_ON, random), rounds=_PASSES, random=random)
            trained_s = time.perf_counter() - started
            held_out = click_model.made(truth, requests, random)
            results = [_measured(arm, model, held_out, batch, budget) for arm in arms]
            report = {
                "tables": {name: len(rows) for name, rows in model.tables.items()}, "requests": requests,
                "batch": batch, "trained_s": trained_s, "memory": results,
                "quality": {
                    "auc": results[0]["auc"], "log_loss": results[0]["log_loss"],
                    "truth_auc": click_model.auc(held_out.chance, held_out.clicked),
                    "truth_log_loss": click_model.log_loss(held_out.chance, held_out.clicked),
                },
            }  # fmt: skip
        watch.sample()
    report |= {"peak_resident": watch.high_water, "limit": config.memory}
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    if watch.high_water > config.memory:
        raise EdgeError(
            f"the limit of {format_size(config.memory)} was broken: the process held {format_size(watch.high_water)}"
        )


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
    yield Arm("a file of this machine", Banks(count=1, nbytes=64 << 20, near=near), _CACHED_ROWS, 0, in_file)
    name = f"{count} throttled banks (latency {format_duration(latency)})"
    yield Arm(name, Banks(count=count, nbytes=size, near=near), 1, count * size, limited)


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
    plain = chances["plain"]
    return {
        "name": arm.name, "near_access_s": near, "bank_access_s": bank,
        "auc": click_model.auc(plain, requests.clicked), "log_loss": click_model.log_loss(plain, requests.clicked),
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
        "requests_per_s": requests / statistics.median(seconds), "planned_per_s": batch / placement.seconds,
        "near": len(placement.near), "in_banks": sum(map(len, placement.banks)), "rounds": placement.rounds,
        "nbytes": placement.nbytes, "joined": [list(table.parts) for table in joined],
        "rows_read": read / _ROUNDS, "rows_cached": counters.get("rows.hits", 0.0) / _ROUNDS,
    }  # fmt: skip


def _print(report: dict[str, Any]) -> None:
    quality = report["quality"]
    rows = sum(report["tables"].values())
    click.echo(
        f"{len(report['tables'])} tables of {rows:,} rows were trained on {_TRAINED_ON:,} made-up clicks in "
        f"{report['trained_s']:.1f} s. On {report['requests']:,} other requests the area under the ROC curve is "
        f"{quality['auc']:.3f} (planted truth: {quality['truth_auc']:.3f}) and the logistic loss "
        f"{quality['log_loss']:.3f} (truth: {quality['truth_log_loss']:.3f})."
    )
    for memory in report["memory"]:
        click.echo(
            f"\n{memory['name']}: an access takes {format_duration(memory['bank_access_s'])} for {report['batch']} "
            f"requests (near memory: {format_duration(memory['near_access_s'])})"
        )
        click.echo(f"{'':16}{'near':>6}{'banks':>7}{'rounds':>8}{'storage':>10}{'planned':>11}{'measured':>11}")
        for name, label in (("plain", "each by itself"), ("joined", "joined in pairs")):
            row = memory[name]
            click.echo(
                f"{label:16}{row['near']:>6}{row['in_banks']:>7}{row['rounds']:>8}{format_size(row['nbytes']):>10}"
                f"{row['planned_per_s']:>9,.0f}/s{row['requests_per_s']:>9,.0f}/s"
            )
        gain = memory["joined"]["requests_per_s"] / memory["plain"]["requests_per_s"]
        pairs = ", ".join(" x ".join(parts) for parts in memory["joined"]["joined"])
        if pairs:
            verdict = "Joining pays here" if gain > 1 else "Joining does not pay here"
            click.echo(f"joined: {pairs}. {verdict}: {gain:.2f} times the rate, and the same rows.")
        else:
            click.echo("The plan joins no tables here.")
    click.echo(
        f"\nPeak memory of the whole process: {format_size(report['peak_resident'])}; "
        f"the limit was {format_size(report['limit'])}."
    )
