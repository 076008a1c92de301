"""The content of a collection: `edge status`, `list` and `get` show it, `remove`, `compact` and `describe` change it;
`edge collections` gives names."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.excerpts import MOST_BYTES, Excerpt, absent
from edge.apps.collection.filters import Filters
from edge.apps.collection.paths import nearest, path_from, resolved
from edge.apps.collection.project import abandoned, drop
from edge.apps.collection.registry import Registry, existing_collection, locate, naming
from edge.apps.collection.report import CollectionStatus, LeftOut
from edge.apps.commands.index import described, wished
from edge.apps.console import (
    markdown_link,
    notice,
    output_option,
    place,
    print_csv,
    print_erasure,
    say,
    styled,
    told,
)
from edge.apps.documents.base import TRANSCRIPT, place_in
from edge.apps.options import (
    CommandGroup,
    collection_option,
    collections_option,
    configure,
    json_option,
    memory_option,
    words_argument,
)
from edge.config import counted, format_size, parse_size
from edge.errors import InputError
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
            notice(
                f"{counted(len(gone), 'project')} searched with --here {'is' if len(gone) == 1 else 'are'} gone; "
                "`edge collections prune` deletes what is left of them"
            )


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
        notice("no indexed file passes the filters" if filters else "no file is indexed")
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
        notice("nothing found: no line with text is among those")
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
        notice(f"{excerpt.path}: line {excerpt.line_end} is longer; a higher --max-bytes shows more of it")
    if excerpt.continues_at is not None:
        notice(f"{excerpt.path} goes on at line {excerpt.continues_at}")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--purge", is_flag=True, help="Erase what the index has of them, also what was removed before.")
@collection_option
@json_option
def remove(paths: tuple[str, ...], purge: bool, collection: Path | None, as_json: bool) -> int:
    """Remove files, or folders with everything below them, from the index; exit code 1 if it held none of them.

    Files on disk stay untouched. A removed folder is no longer watched or indexed. A removed file below a folder that
    stays indexed returns with the next `edge index`, unless a .gitignore or .edgeignore excludes it.
    """
    with told(_opened(collection)) as opened:
        missing = absent(opened.database, paths)
        purged = opened.purge(list(paths)) if purge else None
        removed = opened.delete(list(paths)) if purged is None else purged.erased["files"]
        roots = frozenset(opened.roots)
    coming_back = [path for path in paths if os.path.exists(path) and nearest(resolved(path), roots) is not None]
    if removed and coming_back:
        others = f" and {counted(len(coming_back) - 1, 'other')}" if len(coming_back) > 1 else ""
        notice(
            f"{coming_back[0]}{others} will come back with the next `edge index`, because a folder above is indexed; "
            f"name it in that folder's .edgeignore to keep it out"
        )
    for sentence in missing.values():
        notice(sentence)
    held = len(missing) < len(set(paths))
    if purged is not None:
        print_erasure({"removed": removed, **purged.to_json()}, as_json)
    elif as_json:
        click.echo(json.dumps({"removed": removed}))
    elif held:
        click.echo(f"removed {counted(removed, 'file')}")
    return 0 if held else 1


@click.command()
@memory_option
@collection_option
@json_option
def compact(memory: str | None, collection: Path | None, as_json: bool) -> None:
    """Free the space of removed files, and optimize the index."""
    path = locate(collection)
    before = _nbytes(path)
    with told(_opened(collection, memory)) as opened:
        alone = opened.compact()
    after = _nbytes(path)  # after closing, because closing empties SQLite's log
    if as_json:
        click.echo(json.dumps({"bytes_before": before, "bytes_after": after}))
        return
    freed = f"gave {format_size(before - after)} back: " if before > after else "nothing to give back: "
    rest = "" if alone else "; the old vector lists go later, because another process is reading"
    click.echo(f"{freed}{format_size(after)}{rest}")


@click.command()
@click.argument("path", required=False)
@words_argument("text", required=False)
@click.option("--remove", is_flag=True, help="Take the description of PATH away.")
@collection_option
@json_option
def describe(path: str | None, text: str | None, remove: bool, collection: Path | None, as_json: bool) -> None:
    """Describe the folder or file PATH: TEXT is returned with every hit below it, for agents and people.

    Without TEXT, print the description of PATH; without PATH, all descriptions.
    """
    place = existing_collection(locate(collection))
    if remove and (path is None or text is not None):
        raise InputError("--remove takes a PATH and no text")
    changing = remove or text is not None
    with told(Collection(place, config=configure(), read_only=not changing)) as opened:
        if changing:
            assert path is not None
            if not remove and not os.path.exists(resolved(path)):
                raise InputError(f"{path} does not exist")
            opened.describe(path, text or "")
        found = opened.descriptions()
    if path is not None:
        found = {known: said for known, said in found.items() if known == resolved(path)}
    if as_json:
        click.echo(json.dumps({"descriptions": found}, ensure_ascii=False))
        return
    for known, said in found.items():
        click.echo(f"{escaped(known)}  {said}")
    if not found and not changing:
        notice("nothing is described" if path is None else f"{path} is not described")


def _opened(chosen: Path | None, memory: str | None = None) -> Collection:
    return Collection(existing_collection(locate(chosen)), config=configure(memory=memory))


def _nbytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@click.group(cls=CommandGroup)
def collections() -> None:
    """Name collections: `-c NAME` selects a collection in every command, and several can be searched together."""


@collections.command()
@click.argument("name")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
def add(name: str, directory: Path | None) -> None:
    """Give the collection in DIRECTORY a NAME. It may be a new one; without DIRECTORY, it is placed among your data.

    `edge index FOLDER -c NAME` fills it.
    """
    path = Registry().add(name, directory)
    more = "" if Collection.exists(path) else f"; `edge index FOLDER -c {name}` fills it"
    click.echo(f"{name} is the collection in {escaped(str(path))}{more}")


@collections.command("list")
@output_option
def list_(output: str) -> int:
    """List the names; exit code 1 if there are none."""
    names = Registry().names().items()
    rows: list[dict[str, Any]] = [
        {"name": name, "path": str(path), "exists": Collection.exists(path)} for name, path in names
    ]
    if output == "json":
        click.echo(json.dumps({"collections": rows}, ensure_ascii=False))
    elif output == "csv":
        print_csv(("name", "path", "exists"), rows)
    else:
        for row in rows:
            empty = "" if row["exists"] else "  (empty)"
            if output == "markdown":
                click.echo(f"- {markdown_link(row['name'], row['path'])}{empty}")
            else:
                click.echo(f"{row['name']:20} {escaped(row['path'])}{empty}")
    if not rows and output == "text":
        notice(f"no collection has a name; {naming({})}")
    return 0 if rows else 1


@collections.command("remove")
@click.argument("name")
def forget(name: str) -> None:
    """Remove NAME from the list. The collection itself stays where it is."""
    click.echo(f"{name} is forgotten; the collection stays in {escaped(str(Registry().remove(name)))}")


@collections.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(yes: bool) -> int:
    """Delete the collections of projects that were searched with --here and whose folders are gone; exit code 1 if
    there are none."""
    found = abandoned(configure())
    for path, root in found.items():
        click.echo(f"{escaped(root)} is gone: {format_size(_nbytes(path))} in {escaped(str(path))}")
    if not found:
        notice("the folders of all projects are there")
    elif yes or click.confirm("Delete these collections?"):
        for path in found:
            drop(path)
    return 0 if found else 1
