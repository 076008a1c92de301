"""`-o`: results as text for people, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from edge.apps.options import Command

FORMATS = ("text", "json", "csv", "markdown")

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def output_option(command: Command) -> Command:
    """`-o/--output`, and `--json` for `-o json`. The command's function gets `output`."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        # --json is read first, because it is eager.
        return value or ("json" if context.meta.get(__name__) else "text")

    def noted(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[__name__] = value

    command = click.option("-o", "--output", type=click.Choice(FORMATS), callback=chosen, help="How to print.")(command)
    return click.option(
        "--json", is_flag=True, is_eager=True, expose_value=False, callback=noted, help="The same as -o json."
    )(command)


def print_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a header and a line for each row."""
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def plain_markdown(text: str) -> str:
    """A text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text)


def markdown_link(text: str, path: str) -> str:
    """A link to a file, whose name may hold anything."""
    target = path.replace("\\", "/").replace("%", "%25").replace("<", "%3C").replace(">", "%3E").replace("\n", "%0A")
    return f"[{plain_markdown(text)}](<{target}>)"
