"""`edge remove`, `edge compact`, `edge describe` and `edge collections`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.excerpts import absent
from edge.apps.collection.paths import nearest, resolved
from edge.apps.collection.project import abandoned, drop
from edge.apps.collection.registry import Registry, existing_collection, locate, naming
from edge.apps.commands.output import markdown_link, output_option, print_csv, print_erasure
from edge.apps.console import told
from edge.apps.options import CommandGroup, collection_option, configure, json_option, memory_option, words_argument
from edge.config import counted, format_size
from edge.errors import InputError
from edge.text.control_characters import escaped


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
        click.echo(
            f"edge: {escaped(coming_back[0])}{others} will come back with the next `edge index`, because a folder "
            f"above is indexed; name it in that folder's .edgeignore to keep it out",
            err=True,
        )
    for sentence in missing.values():
        click.echo(escaped(f"edge: {sentence}"), err=True)
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
        click.echo(
            "edge: nothing is described" if path is None else f"edge: {escaped(path)} is not described", err=True
        )


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
        click.echo(f"edge: no collection has a name; {naming({})}", err=True)
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
        click.echo("edge: the folders of all projects are there", err=True)
    elif yes or click.confirm("Delete these collections?"):
        for path in found:
            drop(path)
    return 0 if found else 1
