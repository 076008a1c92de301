"""The kinds of a passage's parts, from the file to the search result, and to a client of the server."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from edge.apps.assistant.units import units
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, hit_from_json, merge
from tests.apps.collection.conftest import Folder

TEXT = "# Rent\n\nIt is due\nmonthly. Pay it.\n\n- by bank\n\n~~~\npay(870)\n~~~\n"
KINDS = [("heading", "Rent"), ("sentence", "It is due monthly."), ("sentence", "Pay it."), ("item", "by bank")]


def found(collection: Collection) -> list[Hit]:
    return collection.search("when is the rent due", rerank=False)


def shown(hit: Hit) -> list[tuple[str, str]]:
    return [(unit.kind, unit.text) for unit in units(hit.text, hit.kinds)]


def test_a_file_has_them_and_a_client_gets_them(collection: Collection, folder: Folder) -> None:
    folder.write("a.md", TEXT)
    collection.index([folder.path])
    (hit,) = found(collection)
    assert hit.kinds
    assert shown(hit) == [*KINDS, ("setting", "`pay(870)`")]
    assert hit_from_json(json.loads(json.dumps(asdict(hit)))) == hit


def test_added_texts_have_them(collection: Collection) -> None:
    collection.add("Rent\n====\n\nIt is due monthly. Pay it.\n\n- by bank")
    (hit,) = found(collection)
    assert hit.kinds
    assert shown(hit) == KINDS


def test_passages_of_an_older_version_get_them_when_their_file_is_read_again(
    collection: Collection, folder: Folder
) -> None:
    path = folder.write("a.md", TEXT)
    collection.index([folder.path])
    with collection.database.write() as db:
        db.execute("UPDATE chunks SET kinds = NULL, checksum = NULL")
    (hit,) = found(collection)
    assert hit.kinds == ()
    assert shown(hit)[0] == ("heading", "Rent"), "recognized as plain text"
    path.write_text(TEXT + "\n\n", "utf-8")
    with collection.database.read() as db:
        before = [chunk.id for chunk in Catalog().chunks(db, hit.file)]
    collection.index([folder.path])
    (again,) = found(collection)
    assert (again.id, bool(again.kinds)) == (before[0], True), "the same passage, with its kinds"


def test_joined_passages_have_the_kinds_of_both(collection: Collection, folder: Folder) -> None:
    folder.write("a.md", TEXT)
    collection.index([folder.path])
    (hit,) = found(collection)
    below = replace(hit, id=hit.id + 1, text="Another one.", kinds=((1, 12),), ordinals=(1, 1))
    (both,) = merge([hit, below], 5)
    assert shown(both) == [*shown(hit), ("sentence", "Another one.")]
