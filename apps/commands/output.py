"""Results of commands, printed as plain text, JSON, CSV or Markdown (`-o`), and in colours on a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import Any

import click

from edge.apps.collection.hits import Hit, hit_from_json
from edge.apps.options import Command
from edge.text.control_characters import escaped

FORMATS = ("text", "json", "csv", "markdown")

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Everything that `edge search` prints, by this process or the server. `healths`: of each collection, by name.
    `nothing`: why there may be no hits. `figures`: bytes, seconds, and reads of the index."""

    hits: list[Hit]
    healths: dict[str, Any]
    troubles: list[str] = field(default_factory=list)
    nothing: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: SearchOutcome | dict[str, Any]) -> SearchOutcome:
        if isinstance(found, SearchOutcome):
            return found
        return cls(**{**found, "hits": [hit_from_json(hit) for hit in found["hits"]]})


def output_option(command: Command) -> Command:
    """`-o/--output` and `--json`, short for `-o json`; the function gets `output`."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        # --json is eager, so it is parsed first.
        return value or ("json" if context.meta.get(__name__) else "text")

    def noted(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[__name__] = value

    command = click.option("-o", "--output", type=click.Choice(FORMATS), callback=chosen, help="How to print.")(command)
    return click.option(
        "--json", is_flag=True, is_eager=True, expose_value=False, callback=noted, help="The same as -o json."
    )(command)


def print_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def plain_markdown(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def markdown_link(text: str, path: str) -> str:
    """A file's name may hold any character."""
    target = path.replace("\\", "/").replace("%", "%25").replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")
    return f"[{plain_markdown(text)}](<{target}>)"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """On a terminal that supports them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: bool | str) -> str:
    return click.style(text, **style) if is_coloured() else text  # type: ignore[arg-type]


def place(path: str, line: str) -> str:
    return styled(escaped(path), fg="cyan", bold=True) + styled(line, fg="green")


def highlighted(text: str, marks: Sequence[tuple[int, int]]) -> str:
    """`marks` must be in order."""
    parts, end = [], 0
    for start, stop in marks:
        parts += [text[end:start], styled(text[start:stop], fg="yellow", bold=True)]
        end = stop
    return "".join(parts) + text[end:]


def folded(text: str, indent: int) -> str:
    """Line ends stand for some spaces of a text behind an indent on a terminal. Offsets stay the same."""
    width, start = get_terminal_size().columns - 1 - indent, 0
    while is_terminal() and len(text) - start > width:
        at = text.rfind(" ", start, start + width + 1)
        at = at if at >= 0 else text.find(" ", start + max(width, 0))
        if at < 0:
            break
        text, start = f"{text[:at]}\n{text[at + 1 :]}", at + 1
    return text


def say(text: str) -> None:
    click.echo(text, color=is_coloured())


def print_erasure(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo(f"erased: {', '.join(f'{count:,} {what}' for what, count in report['erased'].items())}")
    click.echo("not reached, and may still hold the texts:")
    for place in report["not_reached"]:
        click.echo(f"  {escaped(place)}")
