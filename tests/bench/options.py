"""A benchmark as a function, whose parameters are its options, and its output: tables or one JSON object on stdout, and
a stored run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import click

from bench.figures import Figure, aligned
from bench.run_record import RunRecord
from edge.apps.options import OutputFile
from edge.config import format_size
from edge.errors import EdgeError
from edge.models.registry import models_dir


@dataclass(frozen=True, slots=True)
class Output:
    """Where the results of a benchmark go: as JSON instead of tables, and into the file of the stored run. `begun` is
    the record without figures, made before the measurement."""

    as_json: bool
    store: Path | None
    begun: RunRecord | None

    def put(
        self,
        result: Mapping[str, Any],
        figures: Iterable[Figure],
        show: str,
        notes: Iterable[str] = (),
        *,
        held: int = 0,
        limit: float = math.inf,
    ) -> None:
        """Prints the result and stores the run with its figures and notes.

        `show` is the sentences above the tables of the figures. `held` is the most bytes that a process of this program
        held, and `limit` their limit.
        """
        figures = tuple(figures)
        if self.as_json:
            click.echo(json.dumps(result, ensure_ascii=False))
        else:
            click.echo("\n".join(filter(None, (show, aligned(figures)))))
        if self.store is not None and self.begun is not None:
            replace(self.begun, figures=figures, notes=tuple(notes)).write(self.store)
        if held > limit:
            raise EdgeError(f"the limit was broken: {format_size(held)} held")


_SIZES = ("limit", "bytes", "cache", "cap", "disk", "memory", "resident")
"""The last words of the names of conditions that are numbers of bytes."""


def stated(conditions: Mapping[str, Any]) -> str:
    """A sentence with the conditions of a run, for above its tables. Nested values are left to the JSON object."""

    def text(name: str, value: Any) -> str:
        if isinstance(value, int) and name.split("_")[-1] in _SIZES:
            return format_size(value)
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    told = {name: found for name, found in conditions.items() if not isinstance(found, dict | list | NoneType)}
    return "; ".join(f"{name.replace('_', ' ')} {text(name, value)}" for name, value in told.items())


def prepared(as_json: bool = False, store: Path | None = None) -> Output:
    """The output of the current command."""
    return Output(as_json, store, RunRecord.begun(click.get_current_context()) if store is not None else None)


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The default of an option, which is made when the command runs."""

    make: Callable[[], Any]


ARGUMENT = object()
"""Marks a parameter that is an argument of the command and no option."""

File = Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)]
Folder = Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)]
NewFolder = Annotated[Path, click.Path(file_okay=False, path_type=Path)]
WorkDir = Annotated[
    NewFolder,
    "Where models, indexes and memories are made and kept; `bench` in the folder of the models if not given.",
    Otherwise(lambda: models_dir() / "bench"),
]
VectorsDir = Annotated[NewFolder, "--work-dir", "Where vectors and indexes are made and kept."]
Base = Annotated[
    File | None,
    "Real embeddings (.npy [n, dim]): first rows, last queries, or expanded with noise if they are too few. "
    "Without them rows are of a mixture.",
]
Threads = Annotated[int, click.IntRange(1), "Compute threads."]
Rounds = Annotated[int, click.IntRange(1), "Alternating repetitions (A B A B ...)."]
Count = Annotated[int, click.IntRange(1)]
Precision = Annotated[str, click.Choice(["int8", "fp16", "fp32"])]


class Names(click.ParamType):
    """The type of an option for some of these names, with commas between them."""

    name = "names"

    def __init__(self, known: Collection[str]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        found = [name.strip() for name in value.split(",") if name.strip()]
        if unknown := sorted(set(found) - set(self.known)):
            self.fail(f"{', '.join(unknown)}: not one of {', '.join(self.known)}", param, ctx)
        return found


def benchmark(function: Callable[..., None]) -> click.Command:
    """The command of a benchmark, named like its function. All parameters are keywords.

    A parameter becomes an option with its name, type and default. `Annotated` adds a help text, flags (strings that
    begin with a dash), a type of click, `ARGUMENT` or `Otherwise`. `tuple[X, ...]` may be given several times; of a
    list, the default is shown with commas. `output` gets `--json` and `--store`.
    """
    hints = get_type_hints(function, include_extras=True)
    given = signature(function).parameters
    params = [_parameter(name, hints[name], given[name].default) for name in given if hints[name] is not Output]
    params += [
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
        click.Option(
            ["--store"],
            type=OutputFile(),
            metavar="FILE",
            help="Store this run here as JSON, for `report`.",
        ),
    ]

    @wraps(function)
    def call(as_json: bool, store: Path | None, **values: Any) -> None:
        function(output=prepared(as_json, store), **values)

    return click.Command(function.__name__.replace("_", "-"), callback=call, params=params, help=function.__doc__)


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    notes = list(_notes(hint))
    flags = [note for note in notes if isinstance(note, str) and note.startswith("-")]
    help = next((note for note in reversed(notes) if isinstance(note, str) and note not in flags), None)
    kind = [note for note in notes if not isinstance(note, str | Otherwise) and note not in (ARGUMENT, tuple)][-1]
    help = help or (f"Of {', '.join(kind.known)}." if isinstance(kind, Names) else None)
    several = tuple in notes
    default = next((note.make for note in notes if isinstance(note, Otherwise)), default)
    if ARGUMENT in notes:
        needed = default is Parameter.empty
        return click.Argument([name], type=kind, nargs=-1 if several else 1, required=needed)
    if not any(flag.startswith("--") for flag in flags):
        flags.append(f"--{name.replace('_', '-')}")
    if kind is bool:
        return click.Option([*flags, name], is_flag=True, help=help)
    if isinstance(default, Collection) and not isinstance(default, str) and not several:
        default = ",".join(map(str, default))
    needed = default is Parameter.empty
    shown = not needed and default not in (None, (), "") and not callable(default)
    return click.Option(
        [*flags, name], type=kind, help=help, default=None if needed else default, required=needed, multiple=several,
        show_default=shown,
    )  # fmt: skip


def _notes(hint: Any) -> Iterator[Any]:
    """The type in a hint, and what `Annotated` says about it; `tuple` if there may be several values."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _notes(parts[0])
        yield from hint.__metadata__
    elif origin in (Union, UnionType):
        yield from (note for part in parts if part is not type(None) for note in _notes(part))
    elif origin is tuple:
        yield tuple
        yield from _notes(parts[0])
    else:
        yield hint
