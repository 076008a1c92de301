"""`edge get`: prints indexed documents, or parts of them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edge.apps.collection.excerpts import MOST_BYTES, Excerpt
from edge.apps.collection.together import Together
from edge.apps.files.output import markdown_link, output_option, place, print_csv, say, styled
from edge.apps.options import collections_option, configure
from edge.apps.troubles import told
from edge.config import parse_size
from edge.control_characters import escaped

_COLUMNS = ("path", "line_start", "line_end", "page", "title", "kind", "description", "continues_at", "text")


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-n", "--lines", type=int, help="At most so many lines of each document.")
@click.option("--max-bytes", default=str(MOST_BYTES), show_default=True, help="Of all texts together, such as 20kB.")
@collections_option
@output_option
def get(targets: tuple[str, ...], lines: int | None, max_bytes: str, collections: tuple[str, ...], output: str) -> int:
    """Print the indexed text of each TARGET, until --max-bytes is reached.

    TARGET is a path, PATH:LINE, PATH:FIRST-LAST, #ID (which `edge search` prints behind each result), or a pattern such
    as 'docs/**/*.md', which should be quoted. A path may lack its first folders if only one file matches. Exit code 1
    if no TARGET has such lines.
    """
    with told(Together.opened(collections, configure())) as opened:
        found = opened.read(targets, lines=lines, max_bytes=parse_size(max_bytes))
    if output == "json":
        click.echo(json.dumps({"documents": [asdict(excerpt) for excerpt in found]}, ensure_ascii=False))
    elif output == "csv":
        print_csv(_COLUMNS, [asdict(excerpt) for excerpt in found])
    else:
        for number, excerpt in enumerate(found):
            _print(excerpt, output, first=not number)
    if not found and output == "text":
        click.echo("edge: nothing found: no line with text is among those", err=True)
    return 0 if found else 1


def _print(excerpt: Excerpt, output: str, *, first: bool) -> None:
    where = f":{excerpt.line_start}-{excerpt.line_end}"
    if excerpt.page is not None:
        where = f" p. {excerpt.page}"
    if output == "markdown":
        fence = "`" * max(3, 1 + _longest_run(excerpt.text))
        click.echo(f"## {markdown_link(excerpt.path + where, excerpt.path)}\n\n{fence}\n{excerpt.text}\n{fence}\n")
    else:
        say(("" if first else "\n") + place(excerpt.path, where))
        for line in excerpt.description.splitlines():
            say(styled(f"({escaped(line)})", italic=True))
        click.echo(excerpt.text)
    if excerpt.continues_at is not None:
        click.echo(f"edge: {escaped(excerpt.path)} goes on at line {excerpt.continues_at}", err=True)


def _longest_run(text: str) -> int:
    """The length of the longest run of backticks in a text."""
    longest = run = 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
