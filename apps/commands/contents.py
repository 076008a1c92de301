"""`edge status`, `edge list` and `edge get`: the state of a collection, its files, and their text."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.excerpts import MOST_BYTES, Excerpt
from edge.apps.collection.filters import Filters
from edge.apps.collection.paths import path_from
from edge.apps.collection.project import abandoned
from edge.apps.collection.registry import locate
from edge.apps.collection.report import CollectionStatus, LeftOut
from edge.apps.commands.output import markdown_link, output_option, place, print_csv, say, styled
from edge.apps.commands.tuning import described, wished
from edge.apps.console import notice, told
from edge.apps.documents.base import TRANSCRIPT, place_in
from edge.apps.options import collection_option, collections_option, configure, json_option
from edge.config import counted, format_size, parse_size
from edge.ivf.base import IndexOptions
from edge.ivf.plan import probed
from edge.text.control_characters import escaped

_MOST_REASONS, _MOST_NAMES = 20, 5

_STATES = {"unfinished": "not complete yet"}

_EXCERPT = ("path", "line_start", "line_end", "page", "title", "kind", "description", "continues_at", "cut", "text")


@click.command()
@collection_option
@json_option
def status(collection: Path | None, as_json: bool) -> None:
    """Show the indexed, skipped and failed files with reasons, and the state of the index."""
    with Collection(locate(collection), config=configure(), read_only=True) as opened:
        found = opened.status()
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _print_status(found)
        if gone := abandoned(configure()):
            click.echo(
                f"edge: {counted(len(gone), 'project')} searched with --here {'is' if len(gone) == 1 else 'are'} gone; "
                "`edge collections prune` deletes what is left of them", err=True,
            )  # fmt: skip


@click.command("list")
@click.option("--filter", "filters", multiple=True, metavar="KEY:VALUE", help="As for `edge search`.")
@collections_option
@output_option
def list_files(filters: tuple[str, ...], collections: tuple[str, ...], output: str) -> int:
    """List the indexed files; exit code 1 if there are none."""
    where = Filters.parse(filters)
    with told(Together.opened(collections, configure())) as opened:
        files = [file for collection in opened.collections.values() for file in collection.files(where)]
    if output == "json":
        click.echo(json.dumps({"files": [asdict(file) for file in files]}, ensure_ascii=False))
    elif output == "csv":
        print_csv(("path", "kind", "title", "size", "mtime_ns", "chunks"), [asdict(file) for file in files])
    else:
        for file in files:
            if output == "markdown":
                about = f"{file.kind}, {format_size(file.size)}, {counted(file.chunks, 'passage')}"
                click.echo(f"- {markdown_link(file.path, file.path)} ({about})")
            else:
                click.echo(f"{file.kind:10} {format_size(file.size):>8} {file.chunks:6,}  {escaped(file.path)}")
    if not files and output == "text":
        click.echo("edge: no indexed file passes the filters" if filters else "edge: no file is indexed", err=True)
    return 0 if files else 1


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
    if no TARGET has such lines; 2 if there is no such TARGET, and the others are printed.
    """
    missing: list[str] = []
    with told(Together.opened(collections, configure())) as opened:
        found = opened.read(targets, lines=lines, max_bytes=parse_size(max_bytes), missing=missing)
    if output == "json":
        click.echo(json.dumps({"documents": [asdict(excerpt) for excerpt in found]}, ensure_ascii=False))
    elif output == "csv":
        print_csv(_EXCERPT, [asdict(excerpt) for excerpt in found])
    else:
        for number, excerpt in enumerate(found):
            _print_excerpt(excerpt, output, first=not number)
    for sentence in missing:
        notice(sentence)
    if not found and not missing and output == "text":
        click.echo("edge: nothing found: no line with text is among those", err=True)
    return 2 if missing else 0 if found else 1


def _print_status(found: CollectionStatus) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items(), key=lambda item: -item[1]))
    click.echo(f"collection  {escaped(str(found.path))}")
    click.echo(f"state       {_STATES.get(found.health.state, found.health.state)}")
    for trouble in found.health:
        click.echo(escaped(f"  {trouble}"))
    for root in found.roots:
        click.echo(f"folder      {escaped(root)}")
    click.echo(
        f"indexed     {counted(found.indexed, 'file')}, {format_size(found.source_nbytes)}"
        + (f": {kinds}" if kinds else "")
    )
    if found.pending:
        click.echo(f"waiting     {counted(found.pending, 'file')}")
    if found.embedder is not None:
        click.echo(f"passages    {found.chunks:,}, {found.embedder.dim} dimensions by {found.embedder.name}")
    click.echo(f"database    {format_size(found.database_nbytes)}")
    if (index := found.vectors) is not None:
        click.echo(
            f"vectors     {format_size(index.nbytes)} in {counted(index.segments, 'segment')}, "
            f"{counted(index.lists, 'list')} ({index.codec}); {index.pending:,} added and {index.deleted:,} deleted "
            "since they were sorted"
        )
        if index.tuned is not None:
            goal, parameters = wished(index.tuned.goal), index.tuned.parameters
            click.echo(f"tuned       for {goal}: {described(parameters, index.tuned.rows, index.tuned.nprobe)}")
        elif index.recall:
            nprobe, reached = probed(index.recall, IndexOptions().recall_target)
            click.echo(f"recall@10   {reached:.3f} with the {counted(nprobe, 'list')} that a search probes")
    here = found.roots[0] if len(found.roots) == 1 else os.getcwd()
    _print_left_out("skipped", found.skipped, here, "file or folder", "files and folders")
    _print_left_out("incomplete", found.incomplete, here)
    _print_left_out("failed", found.failed, here)


def _print_left_out(name: str, files: Sequence[LeftOut], here: str, noun: str = "file", nouns: str = "") -> None:
    """The files by their reasons, with their paths from the folder `here`."""
    click.echo(f"{name:11} {counted(len(files), noun, nouns)}")
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        by_reason[file.reason].append(path_from(here, file.path))
    for reason, names in list(by_reason.items())[:_MOST_REASONS]:
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        click.echo(escaped(f"  {', '.join(names[:_MOST_NAMES])}{more}: {reason}"))
    if len(by_reason) > _MOST_REASONS:
        click.echo(f"  ... and for {counted(len(by_reason) - _MOST_REASONS, 'other reason')}: `edge status --json`")


def _print_excerpt(excerpt: Excerpt, output: str, *, first: bool) -> None:
    where = f":{excerpt.line_start}-{excerpt.line_end}"
    if excerpt.page is not None or excerpt.kind == TRANSCRIPT:
        where = place_in(excerpt.kind, excerpt.line_start, excerpt.page)
    if output == "markdown":
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", excerpt.text)), default=0))
        click.echo(f"## {markdown_link(excerpt.path + where, excerpt.path)}\n\n{fence}\n{excerpt.text}\n{fence}\n")
    else:
        say(("" if first else "\n") + place(excerpt.path, where))
        for line in excerpt.description.splitlines():
            say(styled(f"({escaped(line)})", italic=True))
        click.echo(excerpt.text)
    if excerpt.cut:
        click.echo(
            f"edge: {escaped(excerpt.path)}: line {excerpt.line_end} is longer; a higher --max-bytes shows more of it",
            err=True,
        )
    if excerpt.continues_at is not None:
        click.echo(f"edge: {escaped(excerpt.path)} goes on at line {excerpt.continues_at}", err=True)
