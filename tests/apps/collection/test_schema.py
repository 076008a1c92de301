"""A collection of an earlier version opens, and its files are read once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection

from edge.apps.collection.collection import Collection
from edge.apps.store.failures import DamagedStore

Make = Callable[..., Collection]

BACK = (
    "DROP TABLE mails",
    *(f"ALTER TABLE files DROP COLUMN {name}" for name in ("inode", "ctime_ns", "checksum")),
    *(f"ALTER TABLE chunks DROP COLUMN {name}" for name in ("kinds", "checksum")),
    *(f"ALTER TABLE {table} DROP COLUMN quantizer" for table in ("ivf_state", "ivf_segments")),
    "PRAGMA user_version = 7",
)
"""Takes away what came with the checksums of rows."""


def found(collection: Collection) -> list[tuple[str, str, float]]:
    return [(hit.path, hit.text, hit.score) for hit in collection.search("the river floods", rerank=False)]


def test_a_collection_of_an_earlier_version_opens_with_its_reserved_bytes(
    make: Make, small: Any, tmp_path: Path, consistent: Callable[[Collection], None]
) -> None:
    collection = make()
    collection.index(small.path)
    before = found(collection)
    collection.close()
    path = tmp_path / "collection" / "edge.db"
    old = Connection(str(path))
    old.execute("PRAGMA journal_mode = DELETE").fetchall()
    old.reserve_bytes(reserve=8)
    old.execute("VACUUM")
    for statement in BACK:
        old.execute(statement)
    old.close()
    assert path.read_bytes()[20] == 8, "as earlier versions kept the checksums of pages"
    collection = make()
    assert found(collection) == before
    report = collection.index()
    assert (report.indexed, report.chunks) == (3, 0), "every file is read again, and no vector is made again"
    assert found(collection) == before
    with collection.database.read() as db:
        assert db.execute("SELECT count(*) FROM chunks WHERE checksum IS NULL").fetchone() == (0,)
    consistent(collection)


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
