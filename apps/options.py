"""Options that several verbs share, what they are turned into, and how texts are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from edge.config import Config, format_size
from edge.errors import InputError
from edge.runtimes.stats import RunStats

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Document:
    """A text to rank or embed, with the id it came with."""

    text: str
    id: str | None


def engine_options(command: Command) -> Command:
    """`--memory`, `--runtime`, `--threads`: settings every model-running verb takes."""
    for option in (
        click.option("--threads", type=int, help="Compute threads (0: one per physical core)."),
        click.option("--runtime", help="What executes layers: onnx, numpy, mlx, or a plug-in."),
        click.option("--memory", help="Memory limit of the whole process, such as 300MB."),
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


def report_options(command: Command) -> Command:
    """`--json`, `--stats`, `--trace`."""
    for option in (
        click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a Perfetto trace here."),
        click.option("--stats", is_flag=True, help="Print memory, time and cache figures to stderr."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ):
        command = option(command)
    return command


def collection_option(command: Command) -> Command:
    """`--collection`: which collection a verb works on (see `edge.apps.collection.place.locate`)."""
    return click.option(
        "--collection",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory of the collection; if not given, the nearest .edge folder upward, else the user's own.",
    )(command)


def configure(**flags: Any) -> Config:
    """The configuration with these flags on top; flags that are None were not given."""
    return Config.load(flags=flags)


def read_documents(source: str) -> list[Document]:
    """Texts from a file, or from stdin for `-`: one per line, or JSON Lines with `text` and optional `id`.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or a JSON line has no text; the message has the line.
    """
    name = "stdin" if source == "-" else source
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    documents: list[Document] = []
    lines: bool | None = None
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(f"{name}, line {number}: not valid UTF-8 (byte {error.start})") from None
        if not line:
            continue
        if lines is None:  # the first line tells which of the two formats it is
            lines = _is_record(line)
        documents.append(_record(line, name, number) if lines else Document(line, None))
    if not documents:
        raise InputError(f"{name} holds no text")
    return documents


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


def _is_record(line: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and "text" in value


def _record(line: str, name: str, number: int) -> Document:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"{name}, line {number}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{name}, line {number}: a JSON line needs a "text" that is a string')
    found = value.get("id", value.get("_id"))
    return Document(value["text"], None if found is None else str(found))
