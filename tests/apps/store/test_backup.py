"""The copy of a database whose last commits are in its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.apps.store import backup
from edge.apps.store.connections import PAGE_CACHE, has_checksums, plain, reserve_checksums
from edge.apps.store.pages import PAGE


@pytest.mark.parametrize("share", [0.1, 3])
@pytest.mark.parametrize("checksums", [True, False])
def test_a_copy_has_right_checksums_however_much_is_in_the_log(tmp_path: Path, share: float, checksums: bool) -> None:
    """A database smaller and larger than SQLite's cache, all of it in the log."""
    source = plain(tmp_path / "source.db")
    source.execute(f"PRAGMA page_size = {PAGE}")
    if checksums:
        reserve_checksums(source)
    for pragma in ("journal_mode = WAL", "wal_autocheckpoint = 0"):
        source.execute(f"PRAGMA {pragma}").fetchall()
    source.execute("CREATE TABLE rows (content)")
    rows = int(share * PAGE_CACHE / 2500)
    source.executemany("INSERT INTO rows VALUES (randomblob(?))", [(2500,)] * rows)
    source.execute("DELETE FROM rows WHERE rowid % 3 = 0")
    assert backup._copy_database(tmp_path / "source.db", tmp_path / "copy.db") == []
    copy = plain(tmp_path / "copy.db")
    assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert copy.execute("SELECT * FROM rows").fetchall() == source.execute("SELECT * FROM rows").fetchall()
    assert has_checksums(copy) == checksums
    for db in (source, copy):
        db.close()
