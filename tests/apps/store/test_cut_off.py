"""A database file that was cut off, or lost a file beside it, is read as far as it goes, and can be replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge.apps.store.backup import overwrite
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore
from edge.apps.store.salvage import opened
from edge.budget import MemoryBudget

PAGE = 4096
NOTES = ["CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL)"]
LAYOUT = {"notes": ["id", "text"]}
ROWS = 60
LENGTHS = [
    0, 1, 24, 99, 100, 2000, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 5 * PAGE + 700, 9 * PAGE, 10 * PAGE - 1,
]  # fmt: skip
"""In the header, in the first page, at its end, in later pages and at their ends."""


def written(path: Path, budget: MemoryBudget, *, settled: bool = True) -> Path:
    """A database of 60 rows, two or three in a page; a copy of it while its log holds everything, if not settled."""
    live = path.with_name("live")
    live.mkdir()
    with Database(live / path.name, NOTES, budget=budget) as database:
        for _ in range(ROWS // 10):
            with database.write() as db:
                db.executemany("INSERT INTO notes(text) VALUES (?)", [("x" * 1500,)] * 10)
        if settled:
            database.settle()
        for file in live.iterdir():
            shutil.copy2(file, path.with_name(file.name))
    shutil.rmtree(live)
    return path


def cut(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def count(path: Path, budget: MemoryBudget) -> int:
    with Database(path, NOTES, budget=budget) as database, database.read() as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return int(db.execute("SELECT count(*) FROM notes").fetchone()[0])


@pytest.mark.parametrize("length", LENGTHS)
def test_another_database_takes_the_place_of_one_that_was_cut_off(
    tmp_path: Path, budget: MemoryBudget, length: int
) -> None:
    path = written(tmp_path / "notes.db", budget)
    source = tmp_path / "source.db"
    shutil.copy2(path, source)
    cut(path, length)
    assert overwrite(path, source, verbs="edge")
    assert count(path, budget) == ROWS


@pytest.mark.parametrize("length", [PAGE, PAGE + 1, 4 * PAGE, 6 * PAGE + 700, 10 * PAGE - 1])
def test_rows_before_the_cut_are_read(tmp_path: Path, budget: MemoryBudget, length: int) -> None:
    path = written(tmp_path / "notes.db", budget)
    cut(path, length)
    with opened(path, LAYOUT) as wreck:
        rows = list(wreck.rows("notes", ("id", "text")))
        pages = length // PAGE - 3  # the schema, the troubles, the root of the notes
        assert len({identifier for identifier, _ in rows}) >= 2 * pages
        assert all(text == "x" * 1500 for _, text in rows)
        assert wreck.lost["notes"]
    assert path.stat().st_size == length


def test_the_log_of_an_emptied_file_is_kept_and_read(tmp_path: Path, budget: MemoryBudget) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    log = path.with_name("notes.db-wal")
    kept = log.read_bytes()
    assert len(kept) > ROWS * 1500
    cut(path, 0)
    for read_only in (False, True):
        with pytest.raises(DamagedStore, match=r"the file is empty, and was not.*`edge repair` mends"):
            Database(path, NOTES, budget=budget, read_only=read_only)
    assert log.read_bytes() == kept, "SQLite deletes the log of an empty file"
    with opened(path, LAYOUT) as wreck:
        assert len(list(wreck.rows("notes", ("id", "text")))) == ROWS
    (tmp_path / "other").mkdir()
    source = written(tmp_path / "other" / "source.db", budget)
    assert overwrite(path, source, verbs="edge")
    assert count(path, budget) == ROWS


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.7, 0.999])
def test_a_log_that_was_cut_off_leaves_the_commits_before(tmp_path: Path, budget: MemoryBudget, share: float) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    log = path.with_name("notes.db-wal")
    cut(log, int(log.stat().st_size * share))
    with opened(path, LAYOUT) as wreck:
        rows = len(list(wreck.rows("notes", ("id", "text"))))
    assert rows % 10 == 0, "whole commits"
    assert rows >= (ROWS * share // 10 - 2) * 10


def test_the_index_of_the_log_may_be_missing(tmp_path: Path, budget: MemoryBudget) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    path.with_name("notes.db-shm").unlink()
    assert count(path, budget) == ROWS
