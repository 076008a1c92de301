"""`edge status` and `edge list`: the content of a collection, and the skipped files with their reasons."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.registry import locate
from edge.apps.collection.report import CollectionStatus, LeftOut
from edge.apps.collection.together import Together
from edge.apps.files.output import markdown_link, output_option, print_csv
from edge.apps.files.tuning import described, wished
from edge.apps.options import collection_option, collections_option, configure, json_option
from edge.apps.troubles import told
from edge.config import format_size
from edge.control_characters import escaped
from edge.ivf.base import IndexOptions
from edge.ivf.probing import probed


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
        _print(found)


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
                about = f"{file.kind}, {format_size(file.size)}, {file.chunks:,} passages"
                click.echo(f"- {markdown_link(file.path, file.path)} ({about})")
            else:
                click.echo(f"{file.kind:9} {format_size(file.size):>8} {file.chunks:6,}  {escaped(file.path)}")
    return 0 if files else 1


def _print(found: CollectionStatus) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items(), key=lambda item: -item[1]))
    click.echo(f"collection  {escaped(str(found.path))}")
    click.echo(f"state       {found.health.state}")
    for trouble in found.health:
        click.echo(escaped(f"  {trouble}"))
    for root in found.roots:
        click.echo(f"folder      {escaped(root)}")
    click.echo(
        f"indexed     {found.indexed:,} files, {format_size(found.source_nbytes)}" + (f": {kinds}" if kinds else "")
    )
    if found.pending:
        click.echo(f"waiting     {found.pending:,} files")
    if found.embedder is not None:
        click.echo(f"passages    {found.chunks:,}, {found.embedder.dim} dimensions by {found.embedder.name}")
    click.echo(f"database    {format_size(found.database_nbytes)}")
    if (index := found.vectors) is not None:
        click.echo(
            f"vectors     {format_size(index.nbytes)} in {index.segments} segments, {index.lists:,} lists "
            f"({index.codec}); {index.pending:,} rows pending, {index.deleted:,} deleted"
        )
        if index.tuned is not None:
            goal, parameters = wished(index.tuned.goal), index.tuned.parameters
            click.echo(f"tuned       for {goal}: {described(parameters, index.tuned.rows, index.tuned.nprobe)}")
        elif index.recall:
            click.echo(f"recall@10   {_recall(index.recall)}")
    click.echo(f"skipped     {len(found.skipped):,} files and folders{_by_reason(found.skipped)}")
    click.echo(f"failed      {len(found.failed):,} files")
    for file in found.failed:
        click.echo(escaped(f"  {file.path}: {file.reason}"))


def _recall(measured: tuple[tuple[int, float], ...]) -> str:
    """The measured recall that searches aim for, and how many lists they probe; `--json` has the whole curve."""
    nprobe, reached = probed(measured, IndexOptions().recall_target)
    return f"{reached:.3f} with the {nprobe:,} lists that a search probes"


def _by_reason(files: tuple[LeftOut, ...]) -> str:
    counts = Counter(file.reason for file in files)
    most = [f"{count:,} {escaped(reason)}" for reason, count in counts.most_common(6)]
    return (": " + "; ".join(most) + ("; ..." if len(counts) > 6 else "")) if most else ""
