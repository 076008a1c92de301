"""SQLite's errors: damage, limits and bugs stay apart; one writer at a time, and a refused lock says which it is."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest

from edge.apps.store.connections import WriterLock, plain
from edge.apps.store.failures import DamagedStore, translated
from edge.errors import InputError, StorageError

PATH = Path("edge.db")

DAMAGE = [
    "SELECT * FROM gone",
    "SELECT gone FROM kept",
    "INSERT INTO kept VALUES (1, 2)",
    "SELECT json_extract(a, '$.x') FROM kept",
    "SELECT * FROM words WHERE words MATCH 'x'",
]
LIMITS = [
    "SELECT 0" + " + 1" * 2000,
    "SELECT " + ", ".join("1" * 3000),
    "SELECT * FROM (SELECT 1" + " UNION ALL SELECT 1" * 600 + ")",
    "SELECT zeroblob(3000000000)",
]
BUGS = [
    "SELEC",
    "SELECT (",
    "SELECT no_function_of_sqlite(1)",
    "SELECT abs(1, 2)",
    "SELECT * FROM kept WHERE a = #",
    "SELECT a FROM kept AS x, kept AS y",
    "SELECT * FROM sound WHERE sound MATCH 'AND'",
    "SELECT * FROM sound WHERE sound MATCH '\"'",
    "ROLLBACK",
    "RELEASE nothing",
]


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    """A database in which one table of words lost its settings, and one text is no JSON."""
    path = str(tmp_path / "edge.db")
    with apsw.Connection(path) as made:
        made.execute(
            "CREATE TABLE kept (a); INSERT INTO kept VALUES ('{');"
            "CREATE VIRTUAL TABLE words USING fts5(a); CREATE VIRTUAL TABLE sound USING fts5(a);"
            "DELETE FROM words_config"
        )
    made.close()
    return apsw.Connection(path)


@pytest.mark.parametrize("statement", DAMAGE)
def test_tables_that_do_not_hold_what_they_should_are_damaged(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(DamagedStore, match=r"edge.db does not hold what it should .*`edge check` says what is lost"):
        run(db, statement)


@pytest.mark.parametrize("statement", LIMITS, ids=lambda statement: statement[:20])
def test_a_limit_of_sqlite_is_told_as_one(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(InputError, match=r"too large for the database: SQLite says .*|memory limit has room"):
        run(db, statement)


@pytest.mark.parametrize("statement", BUGS)
def test_a_wrong_statement_is_no_damage(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(apsw.SQLError):
        run(db, statement)


def run(db: apsw.Connection, statement: str) -> None:
    with translated(PATH, "edge", 5.0):
        db.execute(statement).fetchall()


def test_a_second_writer_is_told_after_a_while(tmp_path: Path) -> None:
    first, second = (WriterLock(tmp_path / "writer.lock", seconds=0.1) for _ in range(2))
    with first(), first():
        with pytest.raises(StorageError, match="another process has been changing"), second():
            pass
        refused: list[str] = []

        def enter() -> None:
            try:
                with first():
                    pass
            except StorageError as error:
                refused.append(str(error))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert "another thread has been changing" in refused[0]
    with second():
        pass


@pytest.mark.parametrize("in_the_way", ["folder", "text"])
def test_a_file_that_is_no_lock_is_named(tmp_path: Path, in_the_way: str) -> None:
    path = tmp_path / "writer.lock"
    if in_the_way == "folder":
        path.mkdir()
    else:
        path.write_text("not a database, and longer than a header of a hundred bytes would be " * 3)
    lock = WriterLock(path, seconds=0.1)
    with pytest.raises(StorageError, match=r"writer\.lock cannot be"), lock():
        pass


def test_to_lock_writes_nothing(tmp_path: Path) -> None:
    """So that a full disk does not keep anybody from removing data."""
    path = tmp_path / "writer.lock"
    for _ in range(2):
        with WriterLock(path)():
            assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]
        assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]


def test_other_threads_run_while_one_waits_for_a_lock(tmp_path: Path) -> None:
    """SQLite waits without the interpreter's lock, so the thread that holds the database goes on and lets go."""
    path = tmp_path / "x.db"
    holder, waiting = plain(path), plain(path)
    holder.execute("CREATE TABLE t(a)")
    waiting.set_busy_timeout(20_000)
    for begin in ("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"):
        holder.execute(begin)
        timer = threading.Timer(0.2, holder.execute, ["COMMIT"])
        timer.start()
        try:
            waiting.execute(begin)
        except apsw.BusyError:
            pytest.fail("the wait for the lock kept the interpreter's lock")
        waiting.execute("ROLLBACK")
        timer.join()
    holder.close()
    waiting.close()
