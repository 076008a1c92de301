"""The schema of a collection, and the checksums of its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection

from edge.apps.collection.collection import Collection
from edge.apps.collection.schema import passage
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.lexical import FUNCTION_WORDS, LexicalIndex

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
