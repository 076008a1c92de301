from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, StorageError

NOTES = "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL);\nCREATE INDEX by_text ON notes(text);"


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1 << 30, baseline=0)


@pytest.fixture
def database(tmp_path: Path, budget: MemoryBudget) -> Database:
    return Database(tmp_path / "notes.db", [NOTES], budget=budget, busy_seconds=0.2)


def texts(database: Database) -> list[str]:
    with database.read() as db:
        return [row[0] for row in db.execute("SELECT text FROM notes ORDER BY id")]


def insert(database: Database, text: str) -> None:
    with database.write() as db:
        db.execute("INSERT INTO notes(text) VALUES (?)", (text,))


def test_a_write_is_seen_as_a_whole_or_not_at_all(database: Database) -> None:
    insert(database, "one")
    with pytest.raises(sqlite3.IntegrityError), database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("two",), (None,)])
    assert texts(database) == ["one"]


def test_readers_keep_their_view_beside_a_writer(database: Database) -> None:
    insert(database, "one")
    with database.read() as db:
        assert db.execute("SELECT count(*) FROM notes").fetchone() == (1,)
        writer = threading.Thread(target=insert, args=(database, "two"))
        writer.start()
        writer.join()
        assert db.execute("SELECT count(*) FROM notes").fetchone() == (1,)
    assert texts(database) == ["one", "two"]


def test_reading_inside_a_write_sees_it(database: Database) -> None:
    with database.write() as db:
        db.execute("INSERT INTO notes(text) VALUES ('one')")
        assert texts(database) == ["one"]
        with pytest.raises(RuntimeError, match="already open"), database.write():
            pass
    assert texts(database) == ["one"]


def test_threads_write_one_after_the_other(database: Database) -> None:
    threads = [threading.Thread(target=lambda: [insert(database, "x") for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(database)) == 80


def test_another_process_that_keeps_writing_is_named(database: Database) -> None:
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"another process has been writing to .*notes\.db for more than 0\.2 s"):
        insert(database, "late")
    other.execute("COMMIT")
    insert(database, "late")
    assert texts(database) == ["late"]


def test_every_connection_holds_a_lease_until_its_thread_ends(database: Database, budget: MemoryBudget) -> None:
    one = budget.used
    assert one > 2 << 20
    held: list[int] = []

    def read() -> None:
        texts(database)
        held.append(budget.used)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert held == [2 * one]
    assert budget.used == one
    database.close()
    assert budget.used == 0
    with pytest.raises(StorageError, match="has been closed"):
        texts(database)


def test_a_cache_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    budget = MemoryBudget(1 << 20, baseline=0)
    with pytest.raises(BudgetExceeded, match="SQLite"):
        Database(tmp_path / "notes.db", [NOTES], budget=budget)
    assert budget.used == 0


def test_migrations_run_once_in_order(tmp_path: Path, budget: MemoryBudget) -> None:
    calls: list[str] = []

    def fill(db: sqlite3.Connection) -> None:
        calls.append("fill")
        db.execute("INSERT INTO notes(text) VALUES ('first;\n')")

    path = tmp_path / "notes.db"
    Database(path, [NOTES], budget=budget).close()
    for _ in range(2):
        with Database(path, [NOTES, fill, "ALTER TABLE notes ADD COLUMN size INTEGER"], budget=budget) as database:
            assert texts(database) == ["first;\n"]
    assert calls == ["fill"]


def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    Database(path, [NOTES], budget=budget).close()
    with pytest.raises(StorageError, match="nowhere"):
        Database(path, [NOTES, "CREATE TABLE more(x);\nINSERT INTO nowhere VALUES (1);"], budget=budget)
    assert budget.used == 0
    with Database(path, [NOTES, "CREATE TABLE more(x);"], budget=budget) as database, database.read() as db:
        assert db.execute("SELECT count(*) FROM more").fetchone() == (0,)


def test_a_newer_schema_is_refused(tmp_path: Path, budget: MemoryBudget) -> None:
    Database(tmp_path / "notes.db", [NOTES, "CREATE TABLE more(x);"], budget=budget).close()
    with pytest.raises(StorageError, match=r"newer version of edge-rag \(schema 2; this one knows 1\)"):
        Database(tmp_path / "notes.db", [NOTES], budget=budget)


def test_read_only(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    with pytest.raises(StorageError, match=r"notes\.db"):
        Database(path, [NOTES], budget=budget, read_only=True)
    assert not path.exists()
    with Database(path, [NOTES], budget=budget) as writer:
        insert(writer, "one")
        with Database(path, [NOTES], budget=budget, read_only=True) as reader:
            insert(writer, "two")
            assert texts(reader) == ["one", "two"]
            with pytest.raises(StorageError, match="readonly"):
                insert(reader, "three")
    with pytest.raises(StorageError, match="open it once for writing"):
        Database(path, [NOTES, "CREATE TABLE more(x);"], budget=budget, read_only=True)


def test_what_is_no_database_is_said(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"certainly no database " * 100)
    with pytest.raises(StorageError, match="damaged or not a database"):
        Database(path, [NOTES], budget=budget)


def test_vacuum_gives_the_space_of_deleted_rows_back(database: Database) -> None:
    with database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("x" * 1000,)] * 2000)
    with database.write() as db:
        db.execute("DELETE FROM notes")
    database.vacuum()
    assert database.path.stat().st_size < 100_000


WRITER = """
import sys
from pathlib import Path
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
database = Database(Path(sys.argv[1]), [sys.argv[2]], budget=MemoryBudget(1 << 30, baseline=0))
number = int(sys.argv[3])
while True:
    with database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [(str(number),)] * 3)
    print(number, flush=True)
    number += 1
"""


def test_what_was_committed_survives_a_kill(database: Database) -> None:
    chance = random.Random(0)
    number = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(database.path), NOTES, str(number)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.random() / 20)
        process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        said = process.stdout.read().split()
        process.wait()
        found = texts(database)
        assert all(found.count(text) == 3 for text in set(found))
        last = max(int(text) for text in found)
        assert last >= int(said[-1] if said else number)
        assert set(found) == {str(i) for i in range(last + 1)}
        number = last + 1
