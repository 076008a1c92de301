"""The options that several benchmarks share, and the output of a benchmark: its tables or one JSON object on stdout,
and a stored run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from making.random_gguf import SHAPES

from bench.figures import Figure, aligned
from bench.run_record import RunRecord
from edge.apps.options import Command, OutputFile, gathered, json_option
from edge.config import format_size
from edge.errors import EdgeError
from edge.models.registry import models_dir


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
        show: str | Callable[[], None],
        notes: Iterable[str] = (),
        *,
        held: int = 0,
        limit: float = math.inf,
    ) -> None:
        """Prints the result and stores the run.

        Args:
            result: the JSON object.
            figures: the figures of the stored run.
            show: the sentences above the tables of the figures; or a function that prints everything, where figures do
                not tell all.
            notes: sentences for the stored run, such as the reason why a peer was left out.
            held: the most bytes that a process of this program held.
            limit: their limit.

        Raises:
            InputError: the file holds a run of another command, machine or version.
            StorageError: the file cannot be written.
            EdgeError: a process held more than its limit. By then the result is printed and stored.
        """
        figures = tuple(figures)
        if self.as_json:
            click.echo(json.dumps(result, ensure_ascii=False))
        elif callable(show):
            show()
        else:
            click.echo("\n".join(filter(None, (show, aligned(figures)))))
        if self.store is not None and self.begun is not None:
            run = replace(self.begun, figures=figures, notes=tuple(notes))
            (RunRecord.load(self.store).extended(run) if self.store.exists() else run).write(self.store)
        if held > limit:
            raise EdgeError(f"the limit was broken: {format_size(held)} held")


def stated(conditions: Mapping[str, Any]) -> str:
    """A sentence with the conditions of a run, for above its tables. Nested values are left to the JSON object."""
    told = {name.replace("_", " "): value for name, value in conditions.items() if not isinstance(value, dict | list)}
    return "; ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in told.items()
    )


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
    help="Store this run here as JSON, for `report` and `compare`. A file of the same command gets another round.",
)
work_dir_option = click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: models_dir() / "bench",
    help="Where models, indexes and memories are made and kept; `bench` in the folder of the models if not given.",
)
base_option = click.option(
    "--base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Real embeddings (.npy [n, dim]) to expand with noise; without them rows are of a mixture.",
)
vectors_dir_option = click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Where vectors and indexes are made and kept.",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1), default=2, show_default=True, help="Compute threads."
)

compute_option = click.option(
    "--compute",
    "shape",
    type=click.Choice(sorted(SHAPES)),
    help="Let llama.cpp compute every token with random weights of this size on this processor, in place of waiting.",
)


def rounds_option(default: int) -> Callable[[Command], Command]:
    """Adds `--rounds`, the number of repetitions."""
    help = "Alternating repetitions (A B A B ...)."
    return click.option("--rounds", type=click.IntRange(1), default=default, show_default=True, help=help)


def names_option(
    flag: str, known: Collection[str], default: str = "", help: str | None = None
) -> Callable[[Command], Command]:
    """Adds an option for names with commas between them, which the function gets as a list; by default all known."""

    def names(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := sorted(set(found) - set(known)):
            raise click.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return found

    help = help or (f"Of {', '.join(known)}." if default else None)
    return click.option(flag, type=names, default=default or ",".join(known), show_default=True, help=help)


def numbers(least: int = 1, most: int | None = None) -> Callable[[str], list[int]]:
    """The type of an option for whole numbers with commas between them, which the function gets as a list."""

    def numbers(text: str) -> list[int]:
        try:
            found = [int(part) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"whole numbers are written 1,2,4 and not {text!r}") from None
        if not all(least <= number <= (most or number) for number in found):
            raise click.BadParameter(f"each number is at least {least}" + (f" and at most {most}" if most else ""))
        return found

    return numbers


output_options = gathered("output", prepared, json_option, store_option)
"""Adds `--json` and `--store`, which the function gets as `output`."""
