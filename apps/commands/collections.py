"""`edge collections`: names for collections, so that several can be searched together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.registry import Registry, naming
from edge.apps.commands.output import markdown_link, output_option, print_csv
from edge.apps.options import CommandGroup
from edge.text.control_characters import escaped


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


@collections.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove NAME from the list. The collection itself stays where it is."""
    click.echo(f"{name} is forgotten; the collection stays in {escaped(str(Registry().remove(name)))}")
