"""`edge plan index`: the parameters that a collection's vector index should have, here or on a modelled accelerator."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.registry import locate
from edge.apps.commands.tuning import described, wished
from edge.apps.console import ProgressBar
from edge.apps.options import Setup, collection_option, json_option, setup_options
from edge.config import format_size
from edge.errors import InputError, RangeError
from edge.ivf.base import Goal
from edge.ivf.maintenance.training import NEIGHBOURS
from edge.planner.search_accelerator import Design, SearchParameters, design
from edge.tuning.choosing import ParameterChoice, grid, least_probed
from edge.tuning.tuner import TuningCandidates


@dataclass(frozen=True, slots=True)
class Planned:
    """Parameters with the accelerator's design for them."""

    choice: ParameterChoice
    design: Design


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
    help="This machine, measured, or the modelled accelerator, whose parallel units are chosen, too.",
)
@collection_option
@setup_options()
@json_option
def index(recall: float, place: str, collection: Path | None, setup: Setup, as_json: bool) -> None:
    """Choose the parameters of a collection's vector index, and change nothing (FANNS).

    Recall is counted on questions made from the collection's own passages. Times of this machine are predicted from
    measured stages, those of the accelerator from a model.
    """
    goal = Goal(recall=recall)
    config = setup.config()
    with Collection(locate(collection), config=config) as opened:
        vectors = opened.vectors
        if vectors is None:
            raise InputError("the collection has no vectors yet; index something before its index is planned")
        found: list[ParameterChoice | Planned] = []

        def use(candidates: TuningCandidates) -> None:
            found.append(candidates.choose(goal) if place == "cpu" else planned(candidates, goal))

        with ProgressBar(" rows") as bar:
            vectors.examine(opened.database.write, use, progress=lambda stage, done, total: bar(done, total))
    click.echo(json.dumps(as_figures(found[0])) if as_json else sentence(found[0], goal))


def planned(candidates: TuningCandidates, goal: Goal) -> Planned:
    """The parameters and the units that answer most queries per second on the modelled accelerator.

    It scans codes of pq and opq. Each scan returns as many results as are scored exactly afterwards.

    Raises:
        InputError: no codes reach the goal, or none of the designs fits the chip.
    """
    assert goal.recall is not None
    best: Planned | None = None
    refused = ""
    for parameters in grid(candidates.sampled, candidates.lists):
        if parameters.codec not in ("pq", "opq"):
            continue
        choice = least_probed(candidates.sampled, candidates.costs, candidates.dim, parameters, goal.recall)
        if choice is None:
            continue
        rows = candidates.sampled.rows
        ratio = max(1.0, choice.expected.rows / (choice.nprobe * rows / parameters.lists))
        search = SearchParameters(
            rows, parameters.lists, choice.nprobe, parameters.codec == "opq", ratio, NEIGHBOURS * parameters.rescore,
            candidates.dim, parameters.code_size,
        )  # fmt: skip
        try:
            made = design(search)
        except RangeError as error:
            refused = str(error)
            continue
        if best is None or made.rate > best.design.rate:
            best = Planned(choice, made)
    if best is None:
        raise InputError(refused or f"no codes of the accelerator reach a recall of {goal.recall:g}: ask for less")
    return best


def as_figures(found: ParameterChoice | Planned) -> dict[str, Any]:
    """The choice as a dictionary with stable keys."""
    choice = found.choice if isinstance(found, Planned) else found
    figures: dict[str, Any] = {
        **asdict(choice.parameters), "nprobe": choice.nprobe, "recall": choice.expected.recall, "rows": choice.rows,
        "nbytes": choice.nbytes,
    }  # fmt: skip
    if isinstance(found, Planned):
        return figures | {
            "units": asdict(found.design.units), "queries_per_s": found.design.rate, "logic": found.design.logic,
            "origin": "calibrated",
        }  # fmt: skip
    return figures | {"seconds": choice.seconds, "origin": "predicted"}


def sentence(found: ParameterChoice | Planned, goal: Goal) -> str:
    """The choice and its reason."""
    choice = found.choice if isinstance(found, Planned) else found
    start = f"for {wished(goal)}: {described(choice.parameters, choice.rows, choice.nprobe)}. "
    recall = f"a recall of {choice.expected.recall:.3f} on made-up questions, {format_size(choice.nbytes)} of lists"
    if not isinstance(found, Planned):
        return f"{start}Predicted: {choice.seconds * 1e3:.2f} ms per query, {recall}; `edge index --tune` builds it."
    units = found.design.units
    return (
        f"{start}The modelled accelerator has these parallel units: centroids {units.centroids}, queues of lists "
        f"{units.selecting}, tables {units.tables}, scanning {units.scanning}. It answers "
        f"{found.design.rate:,.0f} queries per second with {found.design.logic:.0%} of its logic (calibrated model); "
        f"{recall}."
    )
