"""`edge plan published`: compares published figures with those that the planner's models give."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click

from edge.apps.options import json_option
from edge.errors import EdgeError
from edge.planner.published_rago import rago
from edge.planner.published_systems import chameleon, falcon, fanns, fleetrec, microrec, piperag
from edge.planner.tables import Check

GROUPS: dict[str, Callable[[], Iterator[Check]]] = {
    "rago": rago,
    "chameleon": chameleon,
    "piperag": piperag,
    "fanns": fanns,
    "falcon": falcon,
    "microrec": microrec,
    "fleetrec": fleetrec,
}
"""The figures by system."""


@click.command("published")
@click.option(
    "--system", "systems", multiple=True, type=click.Choice(list(GROUPS)), help="Only this system; may be repeated."
)
@json_option
def published(systems: tuple[str, ...], as_json: bool) -> None:
    """Recompute the published figures that the planner's models can be checked by.

    Each says where our value comes from: predicted (published constants alone), calibrated (a constant was chosen to
    fit other published figures) or circular (fitted to this very figure). The exit code is 2 if one is outside its
    tolerance.
    """
    checks = [(system, check) for system in (systems or GROUPS) for check in GROUPS[system]()]
    if as_json:
        rows = [asdict(check) | {"system": system, "error": check.error, "holds": check.holds}
                for system, check in checks]  # fmt: skip
        click.echo(json.dumps({"figures": rows}))
    else:
        click.echo(
            f"{'system':11}{'no.':>4} {'figure':50}{'published':>11}{'ours':>11}{'error':>9}  {'origin':11}source"
        )
        for system, check in checks:
            error = f"{check.error:+.1%}" if check.published else "-"
            click.echo(
                f"{system:11}{check.number:>4} {check.what:50}{check.published:>11,.4g}{check.ours:>11,.4g}{error:>9}  "
                f"{check.origin:11}{check.source}" + ("" if check.holds else "  OUTSIDE ITS TOLERANCE")
            )
    if wrong := [check.what for _, check in checks if not check.holds]:
        raise EdgeError(f"{len(wrong)} figures are outside their tolerance: {', '.join(wrong)}")
