"""The schema of a collection, the checksums of its rows, and the kinds of a passage's parts, from file to client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection

from edge.apps.assistant.units import units
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, hit_from_json, merge
from edge.apps.collection.schema import passage
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.lexical import FUNCTION_WORDS, LexicalIndex
from tests.apps.collection.conftest import Folder

Make = Callable[..., Collection]


def found(collection: Collection) -> list[tuple[str, str, float]]:
    return [(hit.path, hit.text, hit.score) for hit in collection.search("the river floods", rerank=False)]


@pytest.mark.parametrize("version", [1, 10])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_collection_from_before_the_first_release_is_refused(
    make: Make, small: Any, tmp_path: Path, version: int, read_only: bool
) -> None:
    collection = make()
    collection.index(small.path)
    collection.close()
    old = Connection(str(tmp_path / "collection" / "edge.db"))
    old.execute(f"PRAGMA user_version = {version}").fetchall()
    texts = old.execute("SELECT text FROM chunks").fetchall()
    with pytest.raises(StoreUnavailable, match=rf"before the first release of edge-rag \(schema {version}\)"):
        make(read_only=read_only)
    assert old.execute("SELECT text FROM chunks").fetchall() == texts != []
    old.close()


def test_an_older_collection_is_spelled_again_with_the_first_change(make: Make, tmp_path: Path) -> None:
    collection = make()
    collection.add(
        ["written in C++", "written in C", "it costs 1,200.50", "to be deleted: C#"], ids=["a", "b", "c", "d"]
    )
    collection.close()
    old = Connection(str(tmp_path / "collection" / "edge.db"))
    old.execute("INSERT INTO chunks_text(chunks_text) VALUES ('delete-all')")
    plain = LexicalIndex("chunks_text", ignored=FUNCTION_WORDS)  # as versions before spelled it
    for row, context, text in old.execute("SELECT id, context, text FROM chunks").fetchall():
        plain.add(old, [row], [passage(context, text)])
    version = old.execute("PRAGMA user_version").fetchall()[0][0] - 1
    old.execute(f"PRAGMA user_version = {version}").fetchall()
    old.close()
    with pytest.raises(StoreUnavailable, match="open it once for writing, as `edge index` does"):
        make(read_only=True)
    collection = make()
    for query, names in (("lex: C++", {"a"}), ("lex: 1200", {"c"}), ("lex: c#", {"d"}), ("lex: written", {"a", "b"})):
        assert {hit.path for hit in collection.search(query, rerank=False)} == names
    collection.delete(["d"])
    with collection.database.write() as db:
        db.execute("INSERT INTO chunks_text(chunks_text) VALUES ('integrity-check')")
    assert not collection.search("lex: c#", rerank=False)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE files SET path = path || 'x'",
        "UPDATE files SET title = 'Another'",
        "UPDATE chunks SET line_start = line_start + 1",
        "UPDATE chunks SET file = file - 1, ordinal = 9 WHERE file = 2",
        "UPDATE chunks SET context = 'x'",
    ],
)
def test_a_search_verifies_every_row_that_it_returns(make: Make, small: Any, change: str) -> None:
    collection = make()
    collection.index(small.path)
    with collection.database.write() as db:
        db.execute(change)
    with pytest.raises(DamagedStore, match="is not what was stored"):
        found(collection)


TEXT = "# Rent\n\nIt is due\nmonthly. Pay it.\n\n- by bank\n\n~~~\npay(870)\n~~~\n"
KINDS = [("heading", "Rent"), ("sentence", "It is due monthly."), ("sentence", "Pay it."), ("item", "by bank")]


def about_rent(collection: Collection) -> list[Hit]:
    return collection.search("when is the rent due", rerank=False)


def shown(hit: Hit) -> list[tuple[str, str]]:
    return [(unit.kind, unit.text) for unit in units(hit.text, hit.kinds)]


def test_a_file_has_them_and_a_client_gets_them(collection: Collection, folder: Folder) -> None:
    folder.write("a.md", TEXT)
    collection.index([folder.path])
    (hit,) = about_rent(collection)
    assert hit.kinds
    assert shown(hit) == [*KINDS, ("setting", "`pay(870)`")]
    assert hit_from_json(json.loads(json.dumps(asdict(hit)))) == hit


def test_added_texts_have_them(collection: Collection) -> None:
    collection.add("Rent\n====\n\nIt is due monthly. Pay it.\n\n- by bank")
    (hit,) = about_rent(collection)
    assert hit.kinds
    assert shown(hit) == KINDS


def test_passages_of_an_older_version_get_them_when_their_file_is_read_again(
    collection: Collection, folder: Folder
) -> None:
    path = folder.write("a.md", TEXT)
    collection.index([folder.path])
    with collection.database.write() as db:
        db.execute("UPDATE chunks SET kinds = NULL, checksum = NULL")
    (hit,) = about_rent(collection)
    assert hit.kinds == ()
    assert shown(hit)[0] == ("heading", "Rent"), "recognized as plain text"
    path.write_text(TEXT + "\n\n", "utf-8")
    with collection.database.read() as db:
        before = [chunk.id for chunk in Catalog().chunks(db, hit.file)]
    collection.index([folder.path])
    (again,) = about_rent(collection)
    assert (again.id, bool(again.kinds)) == (before[0], True), "the same passage, with its kinds"


def test_joined_passages_have_the_kinds_of_both(collection: Collection, folder: Folder) -> None:
    folder.write("a.md", TEXT)
    collection.index([folder.path])
    (hit,) = about_rent(collection)
    below = replace(hit, id=hit.id + 1, text="Another one.", kinds=((1, 12),), ordinals=(1, 1))
    (both,) = merge([hit, below], 5)
    assert shown(both) == [*shown(hit), ("sentence", "Another one.")]
