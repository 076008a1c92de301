"""`report`: writes the tables of stored runs as Markdown, and into a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from bench.figures import tables
from bench.run_record import RunRecord, records
from edge.errors import InputError, StorageError
from edge.files.input_file import read_small
from edge.files.output_file import open_output

_WIDTH = 118
_BLOCK = re.compile(r"<!-- run (?P<name>\S+) -->\n.*?<!-- end of run -->\n", re.DOTALL)


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
    blocks = {name: block(name, run) for name, run in records(runs).items()}
    if page is None:
        click.echo("\n".join(blocks.values()), nl=False)
        return
    try:
        text = read_small(page).decode()
        renewed = renew(text, blocks)
        if renewed != text:
            with open_output(page) as file:
                file.write(renewed.encode())
    except OSError as error:
        raise StorageError(f"{page} cannot be renewed: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{page} is no text in UTF-8") from None
    click.echo(f"{page}: {len(blocks)} blocks {'were renewed' if renewed != text else 'are up to date'}", err=True)


def renew(page: str, blocks: Mapping[str, str]) -> str:
    """A page with the blocks of these runs in place of its own.

    Raises:
        InputError: the page names a run that is not there, or lacks the place of one.
    """
    places = [match["name"] for match in _BLOCK.finditer(page)]
    if unknown := sorted(set(places) - set(blocks)):
        raise InputError(f"the page has a place for {', '.join(unknown)}, which is no run of these")
    if homeless := sorted(set(blocks) - set(places)):
        raise InputError(f"the page has no place for {', '.join(homeless)}: write <!-- run {homeless[0]} -->")
    return _BLOCK.sub(lambda match: blocks[match["name"]], page)


def block(name: str, run: RunRecord) -> str:
    """The Markdown of one run, between its two marks."""
    repeated = max(len(figure.rounds) for figure in run.figures)
    rounds = "one round" if repeated == 1 else f"medians of up to {repeated} rounds"
    head = f"`{run.command}`: {run.date}, version {run.version}, {run.machine}, {rounds}."
    text = "\n\n".join([_wrapped(head), *map(_table, tables(run.figures)), *map(_wrapped, run.notes)])
    return f"<!-- run {name} -->\n{text}\n<!-- end of run -->\n"


def _table(captioned: tuple[str, Sequence[Sequence[str]]]) -> str:
    """A Markdown table, whose caption is in its first cell."""
    caption, (head, *rows) = captioned
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in ([caption, *head[1:]], *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _wrapped(text: str) -> str:
    """Text in lines of the page's width. A command in backticks is not broken at its hyphens."""
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))
