"""Rows that are read from the pages of a file are those that SQLite has written, and no deleted ones."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.apps.store.backup import overwrite
from edge.apps.store.folder import log_of
from edge.apps.store.salvage import carved

PAGE = 4096
COLUMNS = ("id", "a", "b", "c")
LONG = st.builds(lambda piece, times: piece * times, st.sampled_from(["x", "ß", "long "]), st.integers(0, 9000))
VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=20),
    st.binary(max_size=20), LONG,
)  # fmt: skip
ROWS = st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=60)


def made(path: Path, rows: list[tuple[Any, ...]], reserved: int) -> apsw.Connection:
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    db = apsw.Connection(str(path))
    db.reserve_bytes(reserve=reserved)
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("CREATE TABLE notes(id INTEGER PRIMARY KEY, a, b, c)")
    db.execute("CREATE TABLE others(id INTEGER PRIMARY KEY, text)")
    with db:
        db.executemany("INSERT INTO notes(a, b, c) VALUES (?, ?, ?)", rows)
        db.executemany("INSERT INTO others(text) VALUES (?)", [("other",)] * 40)
    return db


def read(path: Path) -> list[tuple[Any, ...]]:
    return list(carved(path, {"notes": COLUMNS}, "notes", COLUMNS))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.sampled_from([0, 8]), st.booleans(), st.booleans())
def test_all_rows_are_found_without_the_first_page(
    tmp_path: Path, rows: list[tuple[Any, ...]], reserved: int, moved: bool, first: bool
) -> None:
    """Also in the log, if it was not moved into the file."""
    path, copy = tmp_path / "notes.db", tmp_path / "copy.db"
    with closing(made(path, rows, reserved)) as db:
        right = db.execute("SELECT * FROM notes").fetchall()
        if moved:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        shutil.copyfile(path, copy)
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    if first and moved:
        with copy.open("r+b") as file:
            file.write(bytes(PAGE))
    found = read(copy)
    assert all(repr(row) in set(map(repr, found)) for row in right)
    if not (first and moved):
        assert sorted(map(repr, found)) == sorted(map(repr, right))


@pytest.mark.parametrize("reserved", [0, 8])
def test_rows_about_as_long_as_a_page_are_whole(tmp_path: Path, reserved: int) -> None:
    """Their parts on the page itself and on others have lengths of their own rule."""
    path = tmp_path / "notes.db"
    lengths = [n * (PAGE - 4 - reserved) + m for n in (0, 1, 2) for m in range(3900, 4150)]
    with closing(made(path, [("x" * length, length, None) for length in lengths], reserved)) as db:
        right = db.execute("SELECT * FROM notes").fetchall()
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert sorted(read(path)) == right


@pytest.mark.parametrize("reserved", [0, 8])
def test_deleted_rows_do_not_come_back(tmp_path: Path, reserved: int) -> None:
    path = tmp_path / "notes.db"
    with closing(made(path, [("a" * 500, n, None) for n in range(200)], reserved)) as db:
        db.execute("DELETE FROM notes WHERE id > 3")
        right = db.execute("SELECT * FROM notes").fetchall()
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert sorted(read(path)) == sorted(right)


@pytest.mark.parametrize("emptied", [True, False])
def test_what_the_log_holds_is_in_the_file_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    """SQLite cannot open the file, so it is replaced. A kill before the last step loses no commit of the log. SQLite
    itself moves the log of a file that is not empty."""
    path, copy = tmp_path / "notes.db", tmp_path / "copy.db"
    with closing(made(path, [("a" * 500, n, None) for n in range(200)], 0)) as db:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.execute("UPDATE notes SET b = b + 1000")
        right = db.execute("SELECT * FROM notes").fetchall()
        shutil.copyfile(path, copy)
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    with copy.open("r+b") as file:
        file.truncate(0) if emptied else file.write(b"\xff" * PAGE)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edge.apps.store.backup.copy_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            overwrite(copy, path, verbs="edge")
    assert not log_of(copy).exists()
    assert set(read(copy)) == set(right)
    assert overwrite(copy, path, verbs="edge")
    with closing(apsw.Connection(str(copy))) as db:
        assert db.execute("SELECT * FROM notes").fetchall() == right
