"""`edge plan index`: the parameters that a collection's vector index should have, here or on an accelerator."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.registry import locate
from edge.apps.commands.index import described, wished
from edge.apps.console import ProgressBar
from edge.apps.options import Setup, collection_option, json_option, setup_options
from edge.config import format_size
from edge.devices.fpga import shape as chip
from edge.devices.fpga.shape import ChipDesign
from edge.errors import InputError, RangeError, as_storage_error
from edge.files.named_file import make_folder, open_output, write_all
from edge.ivf.base import Goal
from edge.ivf.maintenance.training import NEIGHBOURS
from edge.planner.candidates import scan_of
from edge.planner.tuner import ParameterChoice, TuningCandidates, grid, tries


@dataclass(frozen=True, slots=True)
class Planned:
    """Parameters and, for the accelerator, its design and the seconds of the host's part of a query. `rate`: queries a
    second, if the host does its part of one while the chip scans for another."""

    choice: ParameterChoice
    design: ChipDesign | None = None
    host_seconds: float = 0.0
    rate: float = 0.0


@click.command("index")
@click.option(
    "--recall", type=float, default=0.95, show_default=True, help="Share of the 10 nearest passages that are found."
)
@click.option(
    "--on",
    "place",
    type=click.Choice(["cpu", "fpga"]),
    default="cpu",
    show_default=True,
    help="This machine, measured, or the accelerator in hardware, whose design is chosen, too.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the design in Verilog; with --on fpga."
)
@collection_option
@setup_options()
@json_option
def index(recall: float, place: str, out: Path | None, collection: Path | None, setup: Setup, as_json: bool) -> None:
    """Choose the parameters of a collection's vector index, and change nothing (FANNS).

    Recall is counted on questions made from the collection's own passages. Times of this machine are predicted from
    measured stages. Cycles of the accelerator come from a model that its simulation confirms. Each number says where
    it comes from. `--out` writes the design, the constraints of its clock and a report; it needs the extra `fpga`.
    """
    if out and place != "fpga":
        raise InputError("--out is for a design in hardware: it needs --on fpga")
    goal = Goal(recall=recall)
    config = setup.config()
    with Collection(locate(collection), config=config) as opened:
        vectors = opened.vectors
        if vectors is None:
            raise InputError("the collection has no vectors yet; index something before its index is planned")
        found: list[Planned] = []

        def use(candidates: TuningCandidates) -> None:
            found.append(Planned(candidates.choose(goal)) if place == "cpu" else planned(candidates, recall))

        with ProgressBar(" rows") as bar:
            vectors.examine(opened.database.write, use, progress=lambda stage, done, total: bar(done, total))
    if out:
        write_design(out, found[0])
    click.echo(json.dumps(as_figures(found[0])) if as_json else sentence(found[0], goal))


def planned(candidates: TuningCandidates, recall: float) -> Planned:
    """For most queries per second. The chip scans codes of pq and opq; the host chooses lists and rotates queries. Each
    scan returns as many results as are scored exactly afterwards."""
    best: Planned | None = None
    refused = ""
    for parameters in grid(candidates.sampled, candidates.lists):
        if parameters.codec not in ("pq", "opq"):
            continue
        tried = tries(candidates.sampled, candidates.costs, candidates.dim, parameters, recall, math.inf)
        choice = next((choice for choice in tried if choice.reaches(recall)), None)
        if choice is None:
            continue
        try:
            lists = [math.ceil(choice.expected.rows / choice.nprobe)] * choice.nprobe
            made = chip.best(candidates.dim, parameters.code_size, lists, NEIGHBOURS * parameters.rescore)
        except RangeError as error:
            refused = str(error)
            continue
        on_chip = scan_of((parameters.codec, parameters.code_size)), "queue"
        costs = candidates.costs.rates
        host = sum(costs.get(name, 0.0) * n for name, n in choice.load.amounts().items() if name not in on_chip)
        found = Planned(choice, made, host, min(made.rate, 1 / host if host else math.inf))
        if best is None or found.rate > best.rate:
            best = found
    if best is None:
        raise InputError(refused or f"no codes of the accelerator reach a recall of {recall:g}: ask for less")
    return best


def write_design(folder: Path, found: Planned) -> None:
    from edge.devices.fpga.simulation import component_of, constraints, verilog

    assert found.design is not None, "a design was planned"
    text = verilog(component_of(found.design.shape))
    report = json.dumps(as_figures(found) | {"shape": asdict(found.design.shape)}, indent=1)
    with as_storage_error(f"{folder} cannot take the design"):
        make_folder(folder)
        for name, content in (
            ("design.v", text), ("design.lpf", constraints(chip.GOAL)), ("report.json", report + "\n"),
        ):  # fmt: skip
            with open_output(folder / name) as file:
                write_all(file, content.encode())


def as_figures(found: Planned) -> dict[str, Any]:
    choice, made = found.choice, found.design
    figures: dict[str, Any] = {
        **asdict(choice.parameters), "nprobe": choice.nprobe, "recall": choice.expected.recall, "rows": choice.rows,
        "nbytes": choice.nbytes,
    }  # fmt: skip
    if made is None:
        return figures | {"seconds": choice.seconds, "origin": "predicted"}
    return figures | {
        "units": {"scanning": made.shape.units, "tables": made.shape.builders, "lanes": made.shape.lanes},
        "kept": made.shape.kept, "queries_per_s": found.rate, "scans_per_s": made.rate,
        "host_seconds": found.host_seconds, "cpu_seconds": choice.seconds, "frequency": chip.GOAL,
        **asdict(made.resources),
        "origin": {
            "queries_per_s": "derived", "scans_per_s": "derived", "host_seconds": "predicted",
            "cpu_seconds": "predicted", "frequency": "assumed", "luts": "fitted to synthesized designs",
            "blocks": "derived", "multipliers": "derived",
        },
    }  # fmt: skip


def sentence(found: Planned, goal: Goal) -> str:
    choice, made = found.choice, found.design
    start = f"for {wished(goal)}: {described(choice.parameters, choice.rows, choice.nprobe)}. "
    recall = f"a recall of {choice.expected.recall:.3f} on made-up questions, {format_size(choice.nbytes)} of lists"
    if made is None:
        return f"{start}Predicted: {choice.seconds * 1e3:.2f} ms per query, {recall}; `edge index --tune` builds it."
    shape, taken = made.shape, made.resources
    logic = taken.luts / chip.WHOLE.luts
    return (
        f"{start}The accelerator has these parallel units: tables {shape.builders} of {shape.lanes} components, "
        f"scanning {shape.units}, with queues of {shape.kept} that lead to one of {shape.results}. It answers "
        f"{found.rate:,.0f} queries per second (derived from its cycles, an assumed clock of "
        f"{chip.GOAL / 1e6:.0f} MHz, and the host's part of a query, {found.host_seconds * 1e3:.2f} ms predicted, "
        f"where this machine alone takes {choice.seconds * 1e3:.2f} ms). On {chip.CHIP} it takes {logic:.0%} of the "
        f"look-up tables (fitted to synthesized designs) and {taken.blocks} of {chip.WHOLE.blocks} memory blocks "
        f"(derived). It has not run on a board. {recall[0].upper()}{recall[1:]}."
    )
