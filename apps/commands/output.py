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
    """Everything that `edge search` prints, found by this process or by the server.

    Attributes:
        hits: best first.
        healths: the state of each collection, by the name it was chosen by.
        troubles: unfinished work and known damage, a sentence each.
        nothing: a possible reason why there are no hits.
        figures: memory in bytes, times in seconds, reads of the index.
    """

    hits: list[Hit]
    healths: dict[str, Any]
    troubles: list[str] = field(default_factory=list)
    nothing: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: SearchOutcome | dict[str, Any]) -> SearchOutcome:
        """An outcome of this process, or of the server, as JSON holds it."""
        if isinstance(found, SearchOutcome):
            return found
        return cls(**{**found, "hits": [hit_from_json(hit) for hit in found["hits"]]})


def output_option(command: Command) -> Command:
    """The options `-o/--output` and `--json`, short for `-o json`. The command's function gets `output`."""

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
    """Prints a header and a line for each row."""
    import csv

    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def plain_markdown(text: str) -> str:
    """Escapes a text so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\1", text)


def markdown_link(text: str, path: str) -> str:
    """A Markdown link to a file. The file's name may hold any character."""
    target = path.replace("\\", "/").replace("%", "%25").replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")
    return f"[{plain_markdown(text)}](<{target}>)"


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """Whether to print colours: on a terminal that supports them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: bool | str) -> str:
    """A text in colours; unchanged if colours are off."""
    return click.style(text, **style) if is_coloured() else text  # type: ignore[arg-type]


def place(path: str, line: str) -> str:
    """A citation: the path, followed by `:line` or ` p. N`."""
    return styled(escaped(path), fg="cyan", bold=True) + styled(line, fg="green")


def highlighted(text: str, marks: Sequence[tuple[int, int]]) -> str:
    """A text in which the marked ranges are highlighted; `marks` must be in order."""
    parts, end = [], 0
    for start, stop in marks:
        parts += [text[end:start], styled(text[start:stop], fg="yellow", bold=True)]
        end = stop
    return "".join(parts) + text[end:]


def folded(text: str, indent: int) -> str:
    """A text that a terminal shows behind an indent: line ends stand for some of its spaces. Offsets stay the same."""
    width, start = get_terminal_size().columns - 1 - indent, 0
    while is_terminal() and len(text) - start > width:
        at = text.rfind(" ", start, start + width + 1)
        at = at if at >= 0 else text.find(" ", start + max(width, 0))
        if at < 0:
            break
        text, start = f"{text[:at]}\n{text[at + 1 :]}", at + 1
    return text


def say(text: str) -> None:
    """Prints a line that may contain colours."""
    click.echo(text, color=is_coloured())


def print_erasure(report: Mapping[str, Any], as_json: bool) -> None:
    """Prints what was `erased`, and what was `not_reached`."""
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo(f"erased: {', '.join(f'{count:,} {what}' for what, count in report['erased'].items())}")
    click.echo("not reached, and may still hold the texts:")
    for place in report["not_reached"]:
        click.echo(f"  {escaped(place)}")
