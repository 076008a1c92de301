"""`check`, `repair`, `backup` and `restore`, the same for collections and memories."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from edge.apps.console import ProgressBar, notice
from edge.apps.options import Option, Setup, engine_options, gathered, json_option
from edge.apps.store.backup import Store, back_up, restore
from edge.apps.store.care import CheckReport, RepairReport
from edge.config import format_size
from edge.text.control_characters import escaped

Folder = Path | None


def check_command(
    check: Callable[[Folder, Setup, bool], CheckReport], place: Option, verbs: str, settings: Option = engine_options
) -> click.Command:
    """Of a command such as `edge memory` (`verbs`). `check`, whose docstring is the help text, as it is for the other
    commands, reads every byte if its last argument is true. `place` is the option that names the folder."""

    @click.command("check", help=check.__doc__)
    @click.option("--read-data", is_flag=True, help="Read every stored byte, not only the database's tables.")
    @gathered("setup", Setup, settings)
    @place
    @json_option
    def command(read_data: bool, setup: Setup, as_json: bool, **folder: Folder) -> int:
        (chosen,) = folder.values()
        return _print_check(check(chosen, setup, read_data), verbs, as_json)

    return command


def repair_command(
    repair: Callable[[Folder, Setup, ProgressBar], RepairReport], place: Option, verbs: str, unit: str
) -> click.Command:
    """`unit`: the plural that the progress counts."""

    @click.command("repair", help=repair.__doc__)
    @place
    @gathered("setup", Setup, engine_options)
    @json_option
    def command(setup: Setup, as_json: bool, **folder: Folder) -> int:
        (chosen,) = folder.values()
        with ProgressBar(f" {unit}") as bar:
            report = repair(chosen, setup, bar)
        return _print_repair(report, verbs, as_json)

    return command


def backup_command(store: Callable[[Folder], Store], place: Option) -> click.Command:
    @click.command("backup", help=store.__doc__)
    @click.argument("target", metavar="DEST", type=click.Path(path_type=Path))
    @place
    @json_option
    def command(target: Path, as_json: bool, **folder: Folder) -> None:
        nbytes = back_up(store(*folder.values()), target.absolute())
        _print_copied(nbytes, f"copied to {target}", as_json)

    return command


def restore_command(store: Callable[[Folder], Store], place: Option, what: str) -> click.Command:
    """`what` is the noun in the help text of an option."""

    @click.command("restore", help=store.__doc__)
    @click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
    @click.option("--force", is_flag=True, help=f"Put the backup in the place of {what} that is there.")
    @place
    @json_option
    def command(source: Path, force: bool, as_json: bool, **folder: Folder) -> None:
        there = store(*folder.values())
        nbytes = restore(there, source.absolute(), force=force)
        _print_copied(nbytes, f"restored to {there.path}", as_json)

    return command


def _print_check(report: CheckReport, verbs: str, as_json: bool) -> int:
    more = "" if report.read_data else f"; `{verbs} check --read-data` reads every byte"
    looked = f"sound: {format_size(report.nbytes)} in {report.seconds:.1f} s{more}"
    remedy = f"damaged; `{verbs} repair` mends what it can"
    return _printed(report, [looked] if report.sound else [], report, remedy, as_json)


def _print_repair(report: RepairReport, verbs: str, as_json: bool) -> int:
    lines = list(report.actions) or ["nothing was damaged" if report.before.sound else "put in order"]
    if report.aside is not None:
        lines.append(f"a copy of what was damaged is in {report.aside}")
    remedy = f"still damaged; `{verbs} check --read-data` says what"
    return _printed(report, lines, report.after, remedy, as_json)


def _printed(
    report: CheckReport | RepairReport, lines: Sequence[str], state: CheckReport, remedy: str, as_json: bool
) -> int:
    """Returns the exit code: 2 if something is damaged."""
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        for line in lines:
            click.echo(escaped(line))
        for finding in state.findings:
            click.echo(escaped(f"{finding.part}: {finding.text}"))
            for item in finding.items:
                click.echo(escaped(f"  {item}"))
    if state.sound:
        return 0
    notice(f"{state.path} is {remedy}")
    return 2


def _print_copied(nbytes: int, what: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"bytes": nbytes}))
    else:
        click.echo(escaped(f"{format_size(nbytes)} {what}"))
