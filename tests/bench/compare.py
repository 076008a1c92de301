"""`compare`: finds the figures of a stored run that are worse than those of an earlier one."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.figures import UNITS, Figure, shown_in
from bench.run_record import RunRecord, records
from edge.apps.options import json_option
from edge.errors import InputError

_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, math.inf)
_QUANTILES = (318.3, 22.33, 10.21, 7.173, 5.893, 5.208, 4.501, 4.144, 3.733, 3.552, 3.385, 3.090)
"""The 0.999 quantiles of Student's t distribution, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of one figure between two runs.

    Attributes:
        run: the name of the stored runs' file.
        before, after: the figure in both runs.
        difference: the difference of the means, positive if the figure is worse.
        noise: the largest difference that does not count.
    """

    run: str
    before: Figure
    after: Figure
    difference: float
    noise: float

    @property
    def worse(self) -> bool:
        """Whether the figure is worse by more than the noise."""
        return self.difference > self.noise

    @property
    def better(self) -> bool:
        """Whether the figure is better by more than the noise."""
        return -self.difference > self.noise

    def to_json(self) -> dict[str, Any]:
        """The change as JSON."""
        table, row, column = self.before.key
        return {
            "run": self.run, "table": table, "row": row, "column": column, "unit": self.before.unit,
            "peer": self.before.peer, "before": statistics.mean(self.before.rounds),
            "after": statistics.mean(self.after.rounds), "noise": self.noise,
        }  # fmt: skip


@click.command("compare")
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@json_option
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Compare the stored runs AFTER with BEFORE: two files, or two folders whose files have the same names.

    A figure is worse if its mean is worse by more than the noise of the repeated rounds (Student's t, one in a
    thousand) and by at least 3 % (quality: 0.002). A time that was measured once counts if it is worse by a quarter.
    Exits with 1 if a figure of this program is worse.
    """
    changes: list[Change] = []
    absent: list[str] = []
    for name, (first, second) in _pairs(before, after).items():
        for label in ("command", "machine"):
            one, other = getattr(first, label), getattr(second, label)
            if one != other:
                click.echo(f"{name}: another {label}: {one}, then {other}", err=True)
        found = list(differences(name, first, second))
        changes += found
        both = {change.before.key for change in found}
        absent += [f"{name}: {_named(f)}" for f in first.figures if f.better != "neither" and f.key not in both]
    own = [change for change in changes if not change.before.peer]
    tables = {
        "worse": [change for change in own if change.worse],
        "better": [change for change in own if change.better],
        "peers": [change for change in changes if change.before.peer and (change.worse or change.better)],
    }
    if as_json:
        shown = {name: [change.to_json() for change in found] for name, found in tables.items()}
        click.echo(json.dumps({"compared": len(changes), "absent": absent, **shown}, ensure_ascii=False))
    else:
        _print(tables, absent, len(own))
    if tables["worse"]:
        click.get_current_context().exit(1)


def _pairs(before: Path, after: Path) -> dict[str, tuple[RunRecord, RunRecord]]:
    """The runs to compare, by name.

    Raises:
        InputError: there is nothing to compare, or the runs are of different benchmarks.
    """
    if before.is_dir() != after.is_dir():
        raise InputError("a file is compared with a file, and a folder with a folder")
    first, second = records([before]), records([after])
    if before.is_dir():
        pairs = {name: (first[name], second[name]) for name in first if name in second}
        for name in sorted(set(first) ^ set(second)):
            click.echo(f"{name} is only in {before if name in first else after}", err=True)
    else:
        pairs = {after.name: (first[before.name], second[after.name])}
    if not pairs:
        raise InputError(f"{before} and {after} have no file of the same name")
    for name, (one, other) in pairs.items():
        if one.bench != other.bench:
            raise InputError(f"{name}: runs of {one.bench} and of {other.bench} cannot be compared")
    return pairs


def differences(name: str, before: RunRecord, after: RunRecord) -> Iterator[Change]:
    """The changes of all figures that both runs have and that have a direction."""
    earlier = {figure.key: figure for figure in before.figures if figure.better != "neither"}
    for figure in after.figures:
        old = earlier.get(figure.key)
        if old is None:
            continue
        if (old.unit, old.better) != (figure.unit, figure.better):
            raise InputError(f"{name}: {_named(figure)} has another unit or direction than before")
        grown = statistics.mean(figure.rounds) - statistics.mean(old.rounds)
        yield Change(name, old, figure, grown if figure.better == "lower" else -grown, noise(old, figure))


def noise(before: Figure, after: Figure) -> float:
    """The largest difference of two figures' means that does not count.

    It is the larger of the unit's smallest change and the noise of the rounds: the standard error of the difference by
    the pooled variance, times the 0.999 quantile of Student's t distribution. If both were measured only once, their
    unit's assumed noise counts.
    """
    unit = UNITS[before.unit]
    scale = 1.0 if unit.absolute else abs(statistics.mean(before.rounds))
    counts = len(before.rounds), len(after.rounds)
    degrees = sum(counts) - 2
    if degrees == 0:
        return max(unit.least, unit.alone) * scale
    squares = sum(statistics.pvariance(rounds) * len(rounds) for rounds in (before.rounds, after.rounds))
    error = math.sqrt(squares / degrees * (1 / counts[0] + 1 / counts[1]))
    inverse = [1 / d for d in _DEGREES]
    quantile = float(np.interp(1 / degrees, inverse[::-1], _QUANTILES[::-1]))
    return max(unit.least * scale, quantile * error)


def _named(figure: Figure) -> str:
    return ", ".join(filter(None, figure.key))


def _print(tables: dict[str, list[Change]], absent: Sequence[str], count: int) -> None:
    titles = {"worse": "worse", "better": "better", "peers": "other programs (their changes are the machine's)"}
    for name, found in tables.items():
        if not found:
            continue
        click.echo(f"{titles[name]}:")
        for change in sorted(found, key=lambda c: -abs(c.difference) / max(c.noise, 1e-12)):
            suffix, text = shown_in([change.before, change.after])
            old, new = (statistics.mean(figure.rounds) for figure in (change.before, change.after))
            share = f" ({new / old - 1:+.1%})" if old else ""
            rounds = f"{len(change.before.rounds)} and {len(change.after.rounds)} rounds"
            click.echo(
                f"  {change.run}: {_named(change.before)}{suffix}: {text(old)} -> {text(new)}{share}, "
                f"noise {text(change.noise)}, {rounds}"
            )
    for line in absent:
        click.echo(f"not measured again: {line}", err=True)
    click.echo(f"{len(tables['worse'])} of {count} figures are worse, {len(tables['better'])} are better")
