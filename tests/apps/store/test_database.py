from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from naive.program import printed
from naive.waiting import at_once, until

from edge.apps.store.database import Database
from edge.apps.store.failures import StoreUnavailable
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, StorageError

NOTES = "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL);\nCREATE INDEX by_text ON notes(text);"


@pytest.fixture
def database(tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr("edge.apps.store.connections.BUSY_S", 0.2)
    return Database(tmp_path / "notes.db", [NOTES], budget=budget)


def texts(database: Database) -> list[str]:
    with database.read() as db:
        return [row[0] for row in db.execute("SELECT text FROM notes ORDER BY id")]


def insert(database: Database, text: str) -> None:
    with database.write() as db:
        db.execute("INSERT INTO notes(text) VALUES (?)", (text,))


def test_a_write_is_seen_as_a_whole_or_not_at_all(database: Database) -> None:
    insert(database, "one")
    with pytest.raises(apsw.ConstraintError), database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("two",), (None,)])
    with pytest.raises(apsw.ConstraintError), database.write() as db:  # at the commit
        db.execute("PRAGMA defer_foreign_keys = 1; CREATE TABLE tags(n REFERENCES notes); INSERT INTO tags VALUES (7)")
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
    at_once(lambda number: [insert(database, "x") for _ in range(20)], 4)
    assert len(texts(database)) == 80


def test_another_process_that_keeps_writing_is_named(database: Database) -> None:
    other = apsw.Connection(str(database.path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"another process has been writing to .*notes\.db for more than 0\.2 s"):
        insert(database, "late")
    other.execute("COMMIT")
    insert(database, "late")
    assert texts(database) == ["late"]
    with database.write(), pytest.raises(apsw.BusyError):  # it is the only writer from its beginning
        other.execute("BEGIN IMMEDIATE")


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_transactions_hold_leases_and_threads_do_not(database: Database, budget: MemoryBudget) -> None:
    one = budget.used
    assert one > 2 << 20
    with database.read():
        in_thread(lambda: texts(database)).join()
        assert budget.used == 2 * one
    for _ in range(20):
        in_thread(lambda: texts(database)).join()
    assert budget.used == 2 * one
    database.close()
    assert budget.used == 0
    with pytest.raises(StorageError, match="has been closed"):
        texts(database)


def test_many_threads_share_a_few_connections(tmp_path: Path, budget: MemoryBudget) -> None:
    one = Database(tmp_path / "one.db", [NOTES], budget=budget)
    used, most = budget.used, 0

    def read(number: int) -> None:
        nonlocal most
        with one.read():
            most = max(most, budget.used)
            until(lambda: budget.used > used or most > used)  # another thread reads, too

    at_once(read, 20)
    assert used < most <= 4 * used
    one.close()


def test_who_holds_a_connection_may_wait_for_another_thread_that_needs_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.apps.store.connections._PATIENCE_S", 0.05)

    def nested(depth: int) -> None:
        with database.read():
            if depth:
                in_thread(lambda: nested(depth - 1)).join()
            else:
                deepest.set()

    deepest = threading.Event()
    nested(8)
    assert deepest.is_set()


def test_a_connection_that_does_not_fit_is_waited_for(tmp_path: Path) -> None:
    budget = MemoryBudget(4 << 20, baseline=0)
    with Database(tmp_path / "notes.db", [NOTES], budget=budget) as database:
        insert(database, "one")
        found: list[list[str]] = []
        with database.read():
            thread = in_thread(lambda: found.append(texts(database)))
            time.sleep(0.05)
            assert not found
        thread.join()
        assert found == [["one"]]


def test_closing_waits_for_what_other_threads_read(database: Database, budget: MemoryBudget) -> None:
    insert(database, "one")
    begun, found = threading.Event(), []

    def read() -> None:
        with database.read() as db:
            begun.set()
            time.sleep(0.1)
            found.append(db.execute("SELECT count(*) FROM notes").fetchone())

    thread = in_thread(read)
    begun.wait()
    database.close()
    assert found == [(1,)]
    assert budget.used == 0
    thread.join()


def test_closing_inside_a_transaction_of_its_own_thread(database: Database, budget: MemoryBudget) -> None:
    with database.read() as db:
        database.close()
        assert db.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    assert budget.used == 0


def test_a_reader_that_must_not_write_sees_what_others_wrote(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.db"
    with Database(path, [NOTES], budget=budget) as writer:
        insert(writer, "one")
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        reader = Database(path, [NOTES], budget=budget, read_only=True)
        assert texts(reader) == ["one"]
    with Database(path, [NOTES], budget=budget) as writer:
        insert(writer, "two")
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        assert texts(reader) == ["one", "two"]
    reader.close()


def test_a_cache_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    budget = MemoryBudget(1 << 20, baseline=0)
    with pytest.raises(BudgetExceeded, match="SQLite"):
        Database(tmp_path / "notes.db", [NOTES], budget=budget)
    assert budget.used == 0


def test_migrations_run_once_in_order(tmp_path: Path, budget: MemoryBudget) -> None:
    def fill(db: apsw.Connection) -> None:
        db.execute("INSERT INTO notes(text) VALUES ('first;\n')")

    path = tmp_path / "notes.db"
    Database(path, [NOTES], budget=budget).close()
    for _ in range(2):
        with Database(path, [NOTES, fill, "ALTER TABLE notes ADD COLUMN size INTEGER"], budget=budget) as database:
            assert texts(database) == ["first;\n"]


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


def test_a_schema_of_before_the_first_release_is_refused(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    Database(path, [NOTES], budget=budget).close()
    with pytest.raises(StoreUnavailable, match=r"before the first release of edge-rag \(schema 1\)"):
        Database(path, [None, NOTES], budget=budget)
    with Database(tmp_path / "new.db", [None, NOTES], budget=budget) as database, database.read() as db:
        assert db.execute("PRAGMA user_version").fetchall() == [(2,)]
        assert texts(database) == []


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
            with pytest.raises(StorageError, match="cannot be written to"):
                insert(reader, "three")
    for verbs, verb in (("edge", "edge index"), ("edge memory", "edge memory add")):
        with pytest.raises(StorageError, match=f"open it once for writing, as `{verb}` does"):
            Database(path, [NOTES, "CREATE TABLE more(x);"], budget=budget, read_only=True, verbs=verbs)


def test_what_is_no_database_is_said(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"certainly no database " * 100)
    with pytest.raises(StorageError, match="damaged or not a database"):
        Database(path, [NOTES], budget=budget)


def test_vacuum_gives_the_space_of_deleted_rows_back(database: Database) -> None:
    before = database.path.stat().st_size
    insert(database, "one")
    assert database.path.stat().st_size == before, "a short log stays"
    with database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("x" * 1000,)] * 2000)
    assert database.path.stat().st_size > 10**6, "a long one is moved into the file"
    with database.write() as db:
        db.execute("DELETE FROM notes")
    database.vacuum()
    assert database.path.stat().st_size < 100_000


def test_every_commit_is_flushed(tmp_path: Path) -> None:
    """Asked in a process of its own: this one flushes nothing (`naive.unflushed`)."""
    program = """
        import sys
        from edge.apps.store.connections import connect
        db = connect("file:" + sys.argv[1], writable=True, cache=1 << 20, busy_seconds=1)
        print(*db.execute("PRAGMA synchronous").fetchone())
        """
    assert printed(program, str(tmp_path / "notes.db")).strip() == "2"
