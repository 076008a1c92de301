"""The write-ahead log: read as SQLite recovers it, and verified whenever a page of it is read."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from edge.apps.store.checking import CheckReport, check_file
from edge.apps.store.connections import connect
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore, damage_suppressed
from edge.apps.store.folder import log_of
from edge.apps.store.log import FRAME, HEADER, read_log
from edge.apps.store.pages import PAGE
from edge.budget import MemoryBudget

NOTES = "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL);\nCREATE INDEX by_text ON notes(text);"


@pytest.fixture
def left(tmp_path: Path, budget: MemoryBudget) -> Path:
    """A database as a killed process leaves it: twenty commits in the log, which write some pages more than once."""
    live, dead = tmp_path / "live", tmp_path / "dead"
    live.mkdir()
    with Database(live / "notes.db", [NOTES], budget=budget) as database:
        add(database, range(150))
        database.settle()
        for number in range(20):
            add(database, range(1000 + number, 1002 + number))
        shutil.copytree(live, dead)
    return dead / "notes.db"


def add(database: Database, numbers: range) -> None:
    with database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [(f"{n * 7919 % 997:03} " * 60,) for n in numbers])


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def moved(path: Path, place: Path) -> bytes:
    """The rows that SQLite alone, without our code, finds in a database file with its log."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(path.parent, place)
    db = sqlite3.connect(place / path.name)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return (place / path.name).read_bytes()


def test_pages_that_the_log_supersedes_are_those_that_sqlite_replaces(left: Path, tmp_path: Path) -> None:
    log = read_log(log_of(left))
    right = moved(left, tmp_path / "moved")
    pages = left.stat().st_size // PAGE
    assert 3 < len(log.pages) < pages
    assert log.count == len(right) // PAGE
    for page in range(1, pages + 1):
        at = (page - 1) * PAGE + 2000
        flip(left, at)
        assert log.supersedes(page) == (moved(left, tmp_path / "moved") == right), page
        report = CheckReport(left.parent, read_data=True)
        check_file(report, left)
        assert report.sound == log.supersedes(page), page
        flip(left, at)


def test_a_file_that_lacks_pages_of_the_log_alone_is_whole(left: Path, tmp_path: Path) -> None:
    log = read_log(log_of(left))
    right = moved(left, tmp_path / "moved")
    assert left.stat().st_size < len(right)
    for keep in range(left.stat().st_size // PAGE, 0, -1):
        with left.open("r+b") as file:
            file.truncate(keep * PAGE)
        report = CheckReport(left.parent, read_data=True)
        check_file(report, left)
        lost = [page for page in range(keep + 1, len(right) // PAGE + 1) if not log.supersedes(page)]
        assert report.sound == (not lost), keep


def test_the_log_ends_where_sqlite_ends_it(left: Path, tmp_path: Path) -> None:
    log = log_of(left)
    whole, data = log.read_bytes(), left.read_bytes()
    chance = random.Random(1)
    ends = set()
    for at in [*range(HEADER), *(chance.randrange(len(whole)) for _ in range(60))]:
        flip(log, at, chance.randrange(8))
        written = read_log(log)
        after = moved(left, tmp_path / "moved")
        changed = {n + 1 for n in range(len(after) // PAGE) if data[n * PAGE :][:PAGE] != after[n * PAGE :][:PAGE]}
        assert changed <= written.pages
        assert (written.count or len(data) // PAGE) == len(after) // PAGE
        ends.add(len(changed))
        log.write_bytes(whole)
    assert len(ends) > 3


def texts(db: apsw.Connection) -> list[tuple[int, str]]:
    found = db.execute("SELECT id, text FROM notes ORDER BY id").fetchall()
    by_index = db.execute("SELECT id, text FROM notes INDEXED BY by_text ORDER BY text").fetchall()
    assert sorted(by_index) == found
    return found


def test_a_log_that_is_damaged_while_it_is_open_changes_no_result(tmp_path: Path, budget: MemoryBudget) -> None:
    with Database(tmp_path / "notes.db", [NOTES], budget=budget) as database:
        for number in range(0, 200, 10):
            add(database, range(number, number + 10))
        with database.read() as db:
            right = texts(db)
        log = log_of(tmp_path / "notes.db")
        whole, chance, found = log.read_bytes(), random.Random(2), 0
        for _ in range(300):
            at = chance.randrange(len(whole))
            flip(log, at, chance.randrange(8))
            with damage_suppressed():
                found += 1
                db = connect((tmp_path / "notes.db").as_uri(), writable=True, cache=1 << 20, busy_seconds=1)
                with closing(db):
                    assert texts(db) == right, at
                found -= 1
            flip_file_back(log, whole)
        assert found > 20


def test_a_checkpoint_moves_no_damaged_page(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    with Database(path, [NOTES], budget=budget) as database:
        add(database, range(300))
        database.settle()
        before = path.read_bytes()
        add(database, range(300, 302))
        log = log_of(path)
        flip(log, HEADER + FRAME + 2000)
        with pytest.raises(DamagedStore, match="edge check"):
            database.settle()
    assert path.read_bytes() == before


def test_a_transaction_that_spills_reads_its_own_pages(tmp_path: Path, budget: MemoryBudget) -> None:
    """Pages that do not fit the cache are written to the log before the commit, and again; SQLite makes their sums
    when it commits."""
    path = tmp_path / "notes.db"
    with Database(path, [NOTES], budget=budget) as database:
        add(database, range(10))
    db = connect(path.as_uri(), writable=True, cache=16 << 10, busy_seconds=1)
    expected: dict[int, str] = dict(texts(db))
    chance = random.Random(3)
    for round_ in range(6):
        db.execute("BEGIN IMMEDIATE")
        kept = dict(expected)
        for step in range(150):
            key = chance.randrange(1, 400)
            text = f"{round_} {step} " * chance.randrange(1, 300)
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, text))
            expected[key] = text
            if step % 50 == 20:
                db.execute("SAVEPOINT here")
                db.execute("UPDATE notes SET text = text || 'x'")
                assert len(texts(db)) == len(expected)
                db.execute("ROLLBACK TO here")
            if step % 30 == 0:
                assert dict(texts(db)) == expected
        if round_ % 2:
            db.execute("ROLLBACK")
            expected = kept
        else:
            db.execute("COMMIT")
        assert dict(texts(db)) == expected
        assert dict(texts(connect(path.as_uri(), writable=False, cache=1 << 20, busy_seconds=1))) == expected
    db.close()


def test_a_connection_that_is_left_open_ends_without_a_word(tmp_path: Path) -> None:
    code = f"""
import threading
from pathlib import Path
from edge.apps.store.connections import connect
db = connect({(tmp_path / "notes.db").as_uri()!r}, writable=True, cache=1 << 20, busy_seconds=1)
db.execute("CREATE TABLE notes(text)")
db.execute("INSERT INTO notes VALUES ('one')")
import builtins
builtins.kept = db  # outlives every module
def forever():
    while True:
        db.execute("SELECT * FROM notes").fetchall()
threading.Thread(target=forever, daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    again = sqlite3.connect(tmp_path / "notes.db")
    assert again.execute("SELECT count(*) FROM notes").fetchone() == (1,)
    again.close()


def flip_file_back(log: Path, whole: bytes) -> None:
    """In place: the processes that have it open go on with the same file."""
    with log.open("r+b") as file:
        file.write(whole)
