"""`edge describe`: describes folders and files; the description is returned with every hit below them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import resolved
from edge.apps.collection.registry import locate
from edge.apps.options import collection_option, configure, json_option, words_argument
from edge.apps.troubles import told
from edge.control_characters import escaped
from edge.errors import CollectionMissing, InputError


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
    place = locate(collection)
    if not Collection.exists(place):
        raise CollectionMissing(f"there is no collection in {place}; `edge index DIR` makes one")
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
