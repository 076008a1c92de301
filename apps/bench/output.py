"""The output of a benchmark: its tables or one JSON object on stdout, and a stored run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.figures import Figure
from edge.apps.bench.run_record import RunRecord
from edge.apps.options import OutputFile, gathered, json_option


@dataclass(frozen=True, slots=True)
class Output:
    """Where the results of a benchmark go.

    Attributes:
        as_json: print one JSON object instead of tables.
        store: the file of the stored run, or None.
        begun: the record without figures, made before the measurement.
    """

    as_json: bool
    store: Path | None
    begun: RunRecord | None

    def put(
        self,
        result: Mapping[str, Any],
        figures: Iterable[Figure],
        show: Callable[[], None],
        notes: Iterable[str] = (),
    ) -> None:
        """Prints the result and stores the run.

        Args:
            result: the JSON object.
            figures: the figures of the stored run.
            show: prints the tables.
            notes: sentences for the stored run, such as the reason why a peer was left out.

        Raises:
            InputError: the file holds a run of another command, machine or version.
            StorageError: the file cannot be written.
        """
        if self.as_json:
            click.echo(json.dumps(result, ensure_ascii=False))
        else:
            show()
        if self.store is not None and self.begun is not None:
            run = replace(self.begun, figures=tuple(figures), notes=tuple(notes))
            (RunRecord.load(self.store).extended(run) if self.store.exists() else run).write(self.store)


def prepared(as_json: bool = False, store: Path | None = None) -> Output:
    """The output of the current command.

    Raises:
        InputError: the file cannot take this run. A benchmark is long, so this is found before it begins.
    """
    if store is None:
        return Output(as_json, None, None)
    run = RunRecord.begun(click.get_current_context())
    if store.exists():
        RunRecord.load(store).extended(run)
    return Output(as_json, store, run)


store_option = click.option(
    "--store",
    type=OutputFile(),
    metavar="FILE",
    help="Store this run here as JSON, for `edge bench report` and `edge bench compare`. A file of the same command "
    "gets another round.",
)
output_options = gathered("output", prepared, json_option, store_option)
"""Adds `--json` and `--store`, which the function gets as `output`."""
