"""What a check or a repair of a collection or memory has found, printed."""

from __future__ import annotations

import json

import click

from edge.apps.files.shown import shown
from edge.apps.store.checking import CheckReport
from edge.apps.store.repairing import RepairReport
from edge.config import format_size


def print_check(report: CheckReport, verbs: str, as_json: bool) -> int:
    """Prints a report; returns the exit code: 2 where something is damaged."""
    said = f"edge: {shown(str(report.path))} is damaged; `{verbs} repair` mends what it can"
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
        if not report.sound:
            click.echo(said, err=True)
        return 0 if report.sound else 2
    looked = f"{format_size(report.nbytes)} in {report.seconds:.1f} s"
    if report.sound:
        more = "" if report.read_data else f"; `{verbs} check --read-data` reads every byte"
        click.echo(f"sound: {looked}{more}")
        return 0
    _print_findings(report)
    click.echo(said, err=True)
    return 2


def print_repair(report: RepairReport, verbs: str, as_json: bool) -> int:
    """Prints what was done; returns the exit code: 2 where something stays damaged."""
    said = f"edge: {shown(str(report.after.path))} is still damaged; `{verbs} check --read-data` says what"
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
        if not report.after.sound:
            click.echo(said, err=True)
        return 0 if report.after.sound else 2
    for action in report.actions:
        click.echo(shown(action))
    if not report.actions:
        click.echo("nothing was damaged" if report.before.sound else "put in order")
    if report.aside is not None:
        click.echo(shown(f"a copy of what was damaged is in {report.aside}"))
    if report.after.sound:
        return 0
    _print_findings(report.after)
    click.echo(said, err=True)
    return 2


def print_copied(nbytes: int, what: str, as_json: bool) -> None:
    """Says what a backup or its restoration has done."""
    if as_json:
        click.echo(json.dumps({"bytes": nbytes}))
    else:
        click.echo(shown(f"{format_size(nbytes)} {what}"))


def _print_findings(report: CheckReport) -> None:
    for finding in report.findings:
        click.echo(shown(f"{finding.part}: {finding.text}"))
        for item in finding.items:
            click.echo(shown(f"  {item}"))
