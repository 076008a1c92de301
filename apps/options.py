"""The parts that commands are made of: groups, options that several of them share, and the conversion of values."""

from __future__ import annotations

import ast
import errno
import importlib.util
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from edge.config import Config, counted, format_size
from edge.errors import InputError, StorageError

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_LIKENESS = 0.65
"""The least similarity of a suggested name, as `difflib` computes it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How and where a command works. None means that the option was not given, or that the command lacks it."""

    memory: str | None = None
    runtime: str | None = None
    threads: int | None = None
    device: str | None = None
    device_memory: str | None = None
    no_server: bool = False

    def config(self, **flags: Any) -> Config:
        """The configuration, overridden by these settings and by `flags`."""
        return configure(**asdict(self), **flags)


@dataclass(frozen=True, slots=True)
class Report:
    """The output of a command besides its result, and the file for its trace."""

    as_json: bool
    stats: bool
    trace: Path | None


class CommandGroup(click.Group):
    """A group that suggests commands for a mistyped name, and lists each with its whole first sentence, `everyday` ones
    first."""

    everyday: Sequence[str] = ()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [name for name in self.list_commands(ctx) if name not in self.everyday]
        rest = "Other commands" if self.everyday else "Commands"
        for title, names in (("Everyday commands", self.everyday), (rest, others)):
            rows = []
            for name in names:
                said = " ".join(self.said_of(ctx, name).partition("\n\n")[0].split())
                rows.append((name, re.split(r"(?<!\.)\.(?: |$)", said, maxsplit=1)[0]))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def said_of(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return (command and command.help) or ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        names = self.list_commands(ctx)
        if name.startswith("-") or name in names:
            return super().resolve_command(ctx, args)
        close = alike(name, names)
        begun = [known for known in names if known.startswith(name.lower()) and known not in close]
        meant = [f"`{ctx.command_path} {known}`" for known in [*begun, *close][:3]]
        advice = f"did you mean {' or '.join(meant)}?" if meant else f"the commands are {', '.join(names)}."
        ctx.fail(f"there is no command {name!r}; {advice}")


def alike(name: str, names: Sequence[str]) -> list[str]:
    from difflib import get_close_matches  # only a mistake needs it

    return get_close_matches(name.lower(), names, cutoff=_LIKENESS)


class ManyOptions(click.Command):
    """A command whose help shows its everyday options first."""

    def __init__(self, *args: Any, everyday: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._everyday = everyday

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        found = {option.name: option.get_help_record(ctx) for option in options}
        first = [record for name in self._everyday if (record := found.pop(name))]
        for title, records in (("Options", first), ("More options", [record for record in found.values() if record])):
            with formatter.section(title):
                formatter.write_dl(records)


class LazyGroup(CommandGroup):
    """A group of commands named by `module:attribute`, each imported when it is called, beside commands of its own."""

    def __init__(self, *args: Any, verbs: Mapping[str, str], everyday: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs, self.everyday = verbs, everyday

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._verbs, *self.commands})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._verbs:
            return self.commands.get(name)
        module, attribute = self._verbs[name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def said_of(self, ctx: click.Context, name: str) -> str:
        """The docstring of a command's function, or of the function that it is made of, which is read and not imported:
        a list of all commands needs none of their modules."""
        module, _, attribute = self._verbs.get(name, "").partition(":")
        found = importlib.util.find_spec(module) if module else None
        if found is None or found.origin is None:
            return super().said_of(ctx, name)
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8")).body
        said = {node.name: ast.get_docstring(node) for node in tree if isinstance(node, ast.FunctionDef)}
        for node in tree:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
                said[ast.unparse(node.targets[0])] = said.get(ast.unparse(node.value.args[0]))
        return said[attribute] or ""


def gathered(name: str, kind: Callable[..., object], *options: Option) -> Callable[[Command], Command]:
    """A decorator that adds options in this order, and gives the function their values as one dataclass `kind`, its
    argument `name`."""
    fields = signature(kind).parameters

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            values = {field: given.pop(field) for field in fields if field in given}
            return command(*args, **given, **{name: kind(**values)})

        for option in reversed(options):
            option(call)
        return cast("Command", call)

    return decorate


class FiniteRange(click.FloatRange):
    """A number within bounds. Click's own type accepts `nan` and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class OutputFile(click.Path):
    """The path of a file that a verb writes at its end. One that cannot be written is refused before any work."""

    def __init__(self, *, stdout: bool = False) -> None:
        """`stdout`: whether `-` may stand for standard output."""
        super().__init__(dir_okay=False, readable=False, path_type=Path)
        self._stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "-":
            if self._stdout:
                return Path("-")
            raise InputError("a file is needed here, because results go to stdout; name one (./- for a file named -)")
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_fifo():  # opening a pipe would wait until another process reads it
            raise StorageError(f"{path} cannot be written: it is a pipe and not a file")
        if not path.parent.is_dir():
            raise StorageError(f"{path} cannot be written: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise StorageError(f"{path} cannot be written: {os.strerror(errno.EACCES)}")
        return path


def words_argument(name: str, *, required: bool = True, stdin: bool = False) -> Callable[[Command], Command]:
    """An argument of words, which are joined by spaces; None if there is none and none is required. With `stdin`, a
    single `-` reads them."""

    def join(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
        if stdin and value == ("-",):
            from edge.files.named_file import read_text

            return read_text("-")
        return " ".join(value) if value else None

    metavar = f"{name.upper()}..." if required else f"[{name.upper()}]..."
    return click.argument(name, nargs=-1, required=required, metavar=metavar, callback=join)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
memory_option = click.option(
    "--memory", help="Memory limit of the whole process, such as 300MB; `edge doctor` shows the smallest."
)


def several(*options: Option) -> Option:
    """A decorator that adds options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


engine_options = several(
    memory_option,
    click.option("--runtime", help="Runtime that executes the layers: auto, native, onnx, mlx, cuda, or a plug-in."),
    click.option("--threads", type=int, help="Compute threads (0: one per physical core)."),
)
server_option = click.option(
    "--no-server", is_flag=True, help="Work in this process, even where a server of yours runs (`edge serve`)."
)
device_options = several(
    click.option("--device", metavar="NAME[:OPTIONS]",
                 help="Where vectors are searched, and layers run if it can, beside the host (`edge doctor`)."),
    click.option("--device-memory", help="Limit of the device's own memory, such as 2GB."),
)  # fmt: skip


def setup_options(*, device: bool = False, server: bool = False) -> Callable[[Command], Command]:
    """Adds the options of `Setup`, which the function gets as `setup`."""
    more: list[Option] = [device_options] if device else []
    return gathered("setup", Setup, engine_options, *more, *([server_option] if server else []))


text_options = several(
    click.option(
        "--docs", default="-", show_default=True, help="Texts: a file with one per line or JSON Lines; - is stdin."
    ),
    click.option("--max-tokens", type=int, help="Longest sequence in tokens; longer texts are cut."),
)
figures_options = several(
    click.option("--stats", is_flag=True, help="Print memory, time and cache figures to stderr."),
    click.option("--trace", type=OutputFile(), help="Write a Perfetto trace here."),
)

report_options = gathered("report", Report, json_option, figures_options)
_COLLECTION = "; if not given, the nearest .edge folder upward, else the user's own."
collection_option = click.option(
    "-c", "--collection", type=click.Path(file_okay=False, path_type=Path),
    help=f"Name (`edge collections`) or directory of the collection{_COLLECTION}",
)  # fmt: skip
collections_option = click.option(
    "-c", "--collection", "collections", multiple=True, metavar="NAME|DIR",
    help=f"Name (`edge collections`) or directory of a collection, repeated for several{_COLLECTION}",
)  # fmt: skip


def configure(*, no_server: bool = False, **flags: Any) -> Config:
    """The configuration, overridden by the flags that are not None."""
    if no_server:
        flags["server"] = False
    return Config.load(flags=flags)


def workplaces(server: str, config: Config) -> list[str]:
    """The lines of figures that say which server and device worked."""
    lines = [f"server   {server}"]
    if config.automatic:
        from edge.plugins import AutomaticDevice

        lines.append(f"device   {AutomaticDevice.stored()}")
    elif config.device:
        lines.append(f"device   {config.opened_device}")
    return lines


def print_stats(stats: dict[str, Any], config: Config) -> None:
    """Prints the figures of a pass to stderr, a line each, and whether a server made it."""
    from edge.runtimes.passes import RunStats

    run = RunStats(**{name: stats[name] for name in RunStats.__dataclass_fields__})
    saved = 1 - run.evaluations / max(1, run.evaluations_full)
    where = "all layers in memory" if run.buffers == run.layers else f"{run.buffers} of {run.layers} layers in memory"
    states = "on disk" if run.offloaded else "in memory"
    lookups = max(1, run.row_hits + run.row_misses)
    for line in (
        f"memory   {format_size(run.peak_resident)} peak of {format_size(run.limit)} allowed",
        f"time     {run.seconds:.2f} s for {counted(run.sequences, 'text')}, {counted(run.tokens, 'token')}",
        f"layers   {run.layers_run} of {run.layers} run; {saved:.0%} of the work pruned",
        f"window   {where}; {format_size(run.lane_bytes)} read, "
        f"{run.stall_s * 1e3:.0f} ms waited, {run.hidden_s * 1e3:.0f} ms hidden",
        f"chunks   {run.chunk_tokens} tokens; hidden states {states}",
        f"rows     {run.row_hits / lookups:.0%} of {lookups:,} embedding rows were cached",
        *workplaces(stats["server"], config),
    ):
        click.echo(line, err=True)
