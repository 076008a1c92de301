"""A stored run of a benchmark: its command, machine, date and version, and its figures with their repeated rounds.
`report` writes the tables of stored runs as Markdown, and into a page."""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import psutil
from click.core import ParameterSource

from bench.figures import Figure, tables
from bench.process import processor
from edge.config import format_size
from edge.errors import InputError

FORMAT = 1
_LEFT_OUT = ("as_json", "store")
_WIDTH = 118
_BLOCK = re.compile(r"<!-- run (?P<name>\S+)(?: without (?P<without>.+?))? -->\n.*?<!-- end of run -->\n", re.DOTALL)
_NAMES = ("bench", "command", "machine", "version", "date")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a benchmark, whose figures have rounds.

    Attributes:
        command: the command line, with the last component in place of each path.
        machine: processor, memory and system, without the name of the host.
        date: the day on which it began.
        notes: sentences about the run, such as the reason why a peer was left out.
    """

    bench: str
    command: str
    machine: str
    version: str
    date: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def begun(cls, context: click.Context) -> RunRecord:
        """The record of the run that a command begins, still without figures."""
        name = context.info_name or ""
        return cls(name, command_line(context), machine(), program_version(), date.today().isoformat())

    @classmethod
    def load(cls, path: Path) -> RunRecord:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.pop("format") != FORMAT:
            raise InputError(f"{path} is no stored run of format {FORMAT}")
        figures, notes = tuple(map(Figure.from_json, value.pop("figures"))), tuple(value.pop("notes"))
        return cls(**value, figures=figures, notes=notes)

    def write(self, path: Path) -> None:
        """Writes the record to a file, with a line for each figure."""
        head = {"format": FORMAT, **{name: getattr(self, name) for name in _NAMES}, "notes": list(self.notes)}
        lines = [json.dumps(figure.to_json(), ensure_ascii=False) for figure in self.figures]
        text = json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}")
        text += ',\n "figures": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
        path.write_text(text, encoding="utf-8")


def records(paths: Iterable[Path]) -> dict[str, RunRecord]:
    """The records of files and of the JSON files in folders, by the file's name."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise InputError("there are no stored runs")
    names = [file.name for file in files]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two files are named {', '.join(sorted(twice))}")
    return {file.name: RunRecord.load(file) for file in files}


def command_line(context: click.Context) -> str:
    """The command with those of its options that were given, in the order of their declaration."""
    parts = [context.command_path]
    for param in context.command.params:
        if param.name in _LEFT_OUT or context.get_parameter_source(param.name or "") != ParameterSource.COMMANDLINE:
            continue
        value = context.params[param.name or ""]
        value = ",".join(map(str, value)) if isinstance(value, list) else value
        values = value if isinstance(value, tuple) else (value,)
        texts = [shlex.quote(without_folders(_as_typed(one))) for one in values]
        if isinstance(param, click.Option) and param.is_flag:
            texts = [param.opts[-1]]
        elif isinstance(param, click.Option):
            texts = [f"{max(param.opts, key=len)} {text}" for text in texts]
        parts += texts
    return " ".join(parts)


def _as_typed(value: object) -> str:
    """The text of a value on the command line. Counts by name, and pairs of a name and options, are joined by `=`."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={count}" for name, count in value.items())
    return "=".join(value) if isinstance(value, tuple) else str(value)


_LOCAL = re.compile(r"[~.]?[/\\]|\.\.|~|[A-Za-z]:[/\\]")
"""The beginning of a path that depends on the machine or on the working directory."""


def without_folders(text: str) -> str:
    """A text with the last component in place of each path that tells where files lie on this machine."""

    def last(match: re.Match[str]) -> str:
        word = match[0]
        *folders, name = re.split(r"[/\\]", word.rstrip("/\\"))
        return name if _LOCAL.match(word) or (folders and Path(word).exists()) else word

    return re.sub(r"[^\s=,]+", last, text)


def machine() -> str:
    """Processor, memory, system and Python of this machine, without its name."""
    system = f"{platform.system()} {platform.machine()}"
    memory = format_size(psutil.virtual_memory().total)
    return f"{processor()}, {memory} of memory, {system}, Python {platform.python_version()}"


def program_version() -> str:
    """The version, and in a source tree the commit, followed by a plus sign if tracked files were changed."""
    number = version("edge-rag")
    here = Path(__file__)
    if _git(["ls-files", "--error-unmatch", here.name], here.parent) is None:
        return number
    commit = _git(["rev-parse", "--short=10", "HEAD"], here.parent)
    changed = _git(["status", "--porcelain", "--untracked-files=no"], here.parent)
    return f"{number} at commit {commit}{'+' if changed else ''}"


def _git(arguments: Sequence[str], folder: Path) -> str | None:
    """The output of git, or None without git or outside a repository."""
    try:
        done: Any = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Renew the blocks of this Markdown file, which lie between `<!-- run FILE -->` and `<!-- end of run -->`, "
    "instead of printing.",
)  # fmt: skip
def report(runs: Sequence[Path], page: Path | None) -> None:
    """Write the tables of RUNS as Markdown: files that `--store` wrote, or folders of them.

    Each block names the command, the machine, the version and the date. Figures are medians of the rounds.
    """
    found = records(runs)
    if page is None:
        click.echo("\n".join(block(name, run) for name, run in found.items()), nl=False)
        return
    text = page.read_text(encoding="utf-8")
    renewed = renew(text, found)
    page.write_text(renewed, encoding="utf-8")
    click.echo(f"{page}: {len(found)} blocks {'were renewed' if renewed != text else 'are up to date'}", err=True)


def renew(page: str, runs: Mapping[str, RunRecord]) -> str:
    """A page with the blocks of these runs in place of its own."""
    places = [match["name"] for match in _BLOCK.finditer(page)]
    if unknown := sorted(set(places) - set(runs)):
        raise InputError(f"the page has a place for {', '.join(unknown)}, which is no run of these")
    if homeless := sorted(set(runs) - set(places)):
        raise InputError(f"the page has no place for {', '.join(homeless)}: write <!-- run {homeless[0]} -->")
    return _BLOCK.sub(lambda match: block(match["name"], runs[match["name"]], match["without"] or ""), page)


def block(name: str, run: RunRecord, without: str = "") -> str:
    """The Markdown of one run, between its two marks, without the tables and columns that are named, as in
    `first; second`."""
    left_out = without.split("; ") if without else []
    if unknown := set(left_out) - {name for figure in run.figures for name in (figure.table, figure.column)}:
        raise InputError(f"{name} has no table or column {', '.join(sorted(unknown))}")
    repeated = max(len(figure.rounds) for figure in run.figures)
    rounds = "one round" if repeated == 1 else f"medians of up to {repeated} rounds"
    head = f"`{run.command}`: {run.date}, version {run.version}, {run.machine}, {rounds}."
    shown = [figure for figure in run.figures if not {figure.table, figure.column} & set(left_out)]
    text = "\n\n".join([_wrapped(head), *markdown(shown), *map(_wrapped, run.notes)])
    return f"<!-- run {name}{f' without {without}' if without else ''} -->\n{text}\n<!-- end of run -->\n"


def markdown(figures: Iterable[Figure]) -> Iterator[str]:
    return map(_table, tables(figures))


def _table(captioned: tuple[str, Sequence[Sequence[str]]]) -> str:
    """A Markdown table, whose caption is in its first cell."""
    caption, (head, *rows) = captioned
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in ([caption, *head[1:]], *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _wrapped(text: str) -> str:
    """Text in lines of the page's width. A command in backticks is not broken at its hyphens."""
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))
