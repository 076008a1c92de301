"""`edge status` and `edge list`: what a collection holds, and what it does not and why."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.place import locate
from edge.apps.collection.report import CollectionStatus, LeftOut
from edge.apps.collection.together import Together
from edge.apps.files.output import markdown_link, output_option, print_csv
from edge.apps.files.shown import shown
from edge.apps.options import collection_option, collections_option, configure
from edge.apps.troubles import told
from edge.config import format_size
from edge.ivf.base import IndexOptions
from edge.ivf.index import probed

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@collection_option
@_json_option
def status(collection: Path | None, as_json: bool) -> None:
    """Show what is indexed, what was skipped or failed and why, and the state of the index."""
    with Collection(locate(collection), config=configure(), read_only=True) as opened:
        found = opened.status()
    if as_json:
        click.echo(json.dumps(_document(found), ensure_ascii=False))
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
                click.echo(f"{file.kind:9} {format_size(file.size):>8} {file.chunks:6,}  {shown(file.path)}")
    return 0 if files else 1


def _document(found: CollectionStatus) -> dict[str, Any]:
    return {
        "collection": str(found.path),
        "health": found.health.to_json(),
        "roots": list(found.roots),
        "indexed": found.indexed,
        "kinds": dict(found.kinds),
        "pending": found.pending,
        "skipped": [asdict(file) for file in found.skipped],
        "failed": [asdict(file) for file in found.failed],
        "chunks": found.chunks,
        "source_bytes": found.source_nbytes,
        "database_bytes": found.database_nbytes,
        "embedder": None if found.embedder is None else asdict(found.embedder),
        "index": None if found.vectors is None else asdict(found.vectors),
        "tiers": {
            "resident_bytes": found.resident_nbytes,
            "disk_bytes": 0 if found.vectors is None else found.vectors.nbytes,
            "hits": found.list_hits,
            "misses": found.list_misses,
        },
    }


def _print(found: CollectionStatus) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items(), key=lambda item: -item[1]))
    click.echo(f"collection  {shown(str(found.path))}")
    click.echo(f"state       {found.health.state}")
    for trouble in found.health:
        click.echo(shown(f"  {trouble}"))
    for root in found.roots:
        click.echo(f"folder      {shown(root)}")
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
        if index.recall:
            click.echo(f"recall@10   {_recall(index.recall)}")
    click.echo(f"skipped     {len(found.skipped):,} files and folders{_by_reason(found.skipped)}")
    click.echo(f"failed      {len(found.failed):,} files")
    for file in found.failed:
        click.echo(shown(f"  {file.path}: {file.reason}"))


def _recall(measured: tuple[tuple[int, float], ...]) -> str:
    """The measured recall that searches are held to, and the lists they probe for it; `--json` has the whole curve."""
    nprobe, reached = probed(measured, IndexOptions().recall_target)
    return f"{reached:.3f} with the {nprobe:,} lists that a search probes"


def _by_reason(files: tuple[LeftOut, ...]) -> str:
    counts = Counter(file.reason for file in files)
    most = [f"{count:,} {shown(reason)}" for reason, count in counts.most_common(6)]
    return (": " + "; ".join(most) + ("; ..." if len(counts) > 6 else "")) if most else ""
