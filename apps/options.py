"""Options that several verbs share, and what they are turned into."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edge.config import Config, format_size
from edge.errors import InputError, StorageError
from edge.runtimes.stats import RunStats

Command = TypeVar("Command", bound=Callable[..., Any])


class OutputFile(click.Path):
    """The path of a file that a verb writes when all is computed: one that cannot be written is refused before."""

    def __init__(self, *, stdout: bool = False) -> None:
        """`stdout`: whether `-` may stand for it."""
        super().__init__(dir_okay=False, readable=False, path_type=Path)
        self._stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path.

        Raises:
            InputError: it is `-` where that does not stand for stdout.
            StorageError: its folder does not exist, or it cannot be written there.
        """
        if value == "-":
            if self._stdout:
                return Path("-")
            raise InputError("a file is needed here, because results go to stdout; name one (./- for a file named -)")
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_fifo():  # opening it would wait until somebody reads
            raise StorageError(f"{path} cannot be written: it is a pipe and not a file")
        if not path.parent.is_dir():
            raise StorageError(f"{path} cannot be written: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise StorageError(f"{path} cannot be written: {os.strerror(errno.EACCES)}")
        return path


def words_argument(name: str, *, required: bool = True) -> Callable[[Command], Command]:
    """An argument of one or more words, which are joined by spaces: `edge search river flood` needs no quotes. None
    where there is no word and none is required."""

    def join(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
        return " ".join(value) if value else None

    metavar = f"{name.upper()}..." if required else f"[{name.upper()}]..."
    return click.argument(name, nargs=-1, required=required, metavar=metavar, callback=join)


def engine_options(command: Command) -> Command:
    """`--memory`, `--runtime`, `--threads`: settings every model-running verb takes."""
    for option in (
        click.option("--threads", type=int, help="Compute threads (0: one per physical core)."),
        click.option("--runtime", help="What executes layers: auto, native, onnx, numpy, mlx, or a plug-in."),
        click.option(
            "--memory", help="Memory limit of the whole process, such as 300MB; `edge doctor` shows the smallest."
        ),
    ):
        command = option(command)
    return command


def text_options(command: Command) -> Command:
    """`--docs`, `--max-tokens`: what verbs over texts from a file or stdin take."""
    for option in (
        click.option("--max-tokens", type=int, help="Longest sequence in tokens; longer texts are cut."),
        click.option(
            "--docs", default="-", show_default=True, help="Texts: a file with one per line or JSON Lines; - is stdin."
        ),
    ):
        command = option(command)
    return command


def figures_options(command: Command) -> Command:
    """`--stats`, `--trace`."""
    for option in (
        click.option("--trace", type=OutputFile(), help="Write a Perfetto trace here."),
        click.option("--stats", is_flag=True, help="Print memory, time and cache figures to stderr."),
    ):
        command = option(command)
    return command


def report_options(command: Command) -> Command:
    """`--json`, `--stats`, `--trace`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(figures_options(command))


def collection_option(command: Command) -> Command:
    """`--collection`: which collection a verb works on (see `edge.apps.collection.place.locate`)."""
    return click.option(
        "-c",
        "--collection",
        type=click.Path(file_okay=False, path_type=Path),
        help="Name (`edge collections`) or directory of the collection; if not given, the nearest .edge folder upward, "
        "else the user's own.",
    )(command)


def collections_option(command: Command) -> Command:
    """`--collection`, which may be repeated: which collections a verb looks into. The function gets `collections`."""
    return click.option(
        "-c",
        "--collection",
        "collections",
        multiple=True,
        metavar="NAME|DIR",
        help="Name (`edge collections`) or directory of a collection, repeated for several; if not given, the nearest "
        ".edge folder upward, else the user's own.",
    )(command)


def configure(**flags: Any) -> Config:
    """The configuration with these flags on top; flags that are None were not given."""
    return Config.load(flags=flags)


def print_stats(stats: dict[str, Any]) -> None:
    """The figures of a pass, a line each, on stderr."""
    run = RunStats(**{name: stats[name] for name in RunStats.__dataclass_fields__})
    saved = 1 - run.evaluations / max(1, run.evaluations_full)
    where = "all layers in memory" if run.buffers == run.layers else f"{run.buffers} of {run.layers} layers in memory"
    states = "on disk" if run.offloaded else "in memory"
    lookups = max(1, run.row_hits + run.row_misses)
    for line in (
        f"memory   {format_size(run.peak_resident)} peak of {format_size(run.limit)} allowed",
        f"time     {run.seconds:.2f} s for {run.sequences} texts, {run.tokens:,} tokens",
        f"layers   {run.layers_run} of {run.layers} run; {saved:.0%} of the work pruned",
        f"window   {where}; {format_size(run.lane_bytes)} read, "
        f"{run.stall_s * 1e3:.0f} ms waited, {run.hidden_s * 1e3:.0f} ms hidden",
        f"chunks   {run.chunk_tokens} tokens; hidden states {states}",
        f"rows     {run.row_hits / lookups:.0%} of {lookups:,} embedding rows were cached",
    ):
        click.echo(line, err=True)
