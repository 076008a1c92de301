"""What is read from damaged files: rows of pages, files cut off, and repairs that the disk refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from edge.apps.store import salvage
from edge.apps.store.backup import overwrite
from edge.apps.store.care import make_again
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore
from edge.apps.store.folder import log_of
from edge.apps.store.salvage import Wreck, opened
from edge.budget import MemoryBudget
from edge.errors import StorageError

PAGE = 4096


def made(path: Path, rows: list[tuple[Any, ...]]) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("CREATE TABLE notes(id INTEGER PRIMARY KEY, a, b, c)")
    with db:
        db.executemany("INSERT INTO notes(a, b, c) VALUES (?, ?, ?)", rows)
    return db


@pytest.mark.parametrize("emptied", [True, False])
def test_what_the_log_holds_is_in_the_file_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    """SQLite cannot open the file, so it is replaced. A kill before the last step loses no commit of the log. SQLite
    itself moves the log of a file that is not empty."""
    path, copy = tmp_path / "notes.db", tmp_path / "copy.db"
    with closing(made(path, [("a" * 500, n, None) for n in range(200)])) as db:
        if not emptied:
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
    with opened(copy, path) as wreck:
        assert list(wreck.rows("notes", ("id", "a", "b", "c"))) == right
    assert overwrite(copy, path, verbs="edge")
    with closing(apsw.Connection(str(copy))) as db:
        assert db.execute("SELECT * FROM notes").fetchall() == right


NOTES = ["CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL)"]
CUT_ROWS = 60
LENGTHS = [
    0, 1, 24, 99, 100, 2000, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 5 * PAGE + 700, 9 * PAGE, 10 * PAGE - 1,
]  # fmt: skip
"""In the header, in the first page, at its end, in later pages and at their ends."""


def written(path: Path, budget: MemoryBudget, *, settled: bool = True) -> Path:
    """A database of 60 rows, two or three in a page; a copy of it while its log holds everything, if not settled."""
    live = path.with_name("live")
    live.mkdir()
    with Database(live / path.name, NOTES, budget=budget) as database:
        for _ in range(CUT_ROWS // 10):
            with database.write() as db:
                db.executemany("INSERT INTO notes(text) VALUES (?)", [("x" * 1500,)] * 10)
        if settled:
            database.settle()
        for file in live.iterdir():
            shutil.copy2(file, path.with_name(file.name))
    shutil.rmtree(live)
    return path


def fresh(budget: MemoryBudget, path: Path) -> Path:
    with Database(path.with_name("fresh.db"), NOTES, budget=budget) as new:
        new.settle()
    return new.path


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
    assert count(path, budget) == CUT_ROWS


@pytest.mark.parametrize("length", [PAGE, PAGE + 1, 4 * PAGE, 6 * PAGE + 700, 10 * PAGE - 1])
def test_rows_before_the_cut_are_read(tmp_path: Path, budget: MemoryBudget, length: int) -> None:
    path = written(tmp_path / "notes.db", budget)
    cut(path, length)
    with opened(path, fresh(budget, path)) as wreck:
        rows = list(wreck.rows("notes", ("id", "text")))
        pages = length // PAGE - 3  # the schema, the troubles, the root of the notes
        assert len(rows) >= 2 * pages
        assert all(text == "x" * 1500 for _, text in rows)
        assert wreck.lost["notes"]
    assert path.stat().st_size == length


@pytest.mark.parametrize("anew", [False, True])
def test_rows_are_found_without_the_first_page(tmp_path: Path, budget: MemoryBudget, anew: bool) -> None:
    """Also where SQLite has written the tables anew, at other places."""
    path = tmp_path / "notes.db"
    tables = [f"CREATE TABLE t{n}(id INTEGER PRIMARY KEY, text); CREATE INDEX i{n} ON t{n}(text);" for n in range(60)]
    with Database(path, [*NOTES, *tables], budget=budget) as database:
        with database.write() as db:
            db.executemany("INSERT INTO notes(text) VALUES (?)", [("x" * 1500,)] * 40)
        assert database.vacuum() if anew else database.settle()
    with path.open("r+b") as file:
        file.write(bytes(PAGE))
    with Database(tmp_path / "fresh.db", [*NOTES, *tables], budget=budget) as new:
        new.settle()
        with opened(path, new.path) as wreck:
            assert len(list(wreck.rows("notes", ("id", "text")))) == 40


def test_the_log_of_an_emptied_file_is_kept_and_read(tmp_path: Path, budget: MemoryBudget) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    log = path.with_name("notes.db-wal")
    kept = log.read_bytes()
    assert len(kept) > CUT_ROWS * 1500
    cut(path, 0)
    for read_only in (False, True):
        with pytest.raises(DamagedStore, match=r"the file is empty, and was not.*`edge repair` mends"):
            Database(path, NOTES, budget=budget, read_only=read_only)
    assert log.read_bytes() == kept, "SQLite deletes the log of an empty file"
    with opened(path, fresh(budget, path)) as wreck:
        assert len(list(wreck.rows("notes", ("id", "text")))) == CUT_ROWS
    (tmp_path / "other").mkdir()
    source = written(tmp_path / "other" / "source.db", budget)
    assert overwrite(path, source, verbs="edge")
    assert count(path, budget) == CUT_ROWS


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.7, 0.999])
def test_a_log_that_was_cut_off_leaves_the_commits_before(tmp_path: Path, budget: MemoryBudget, share: float) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    log = path.with_name("notes.db-wal")
    cut(log, int(log.stat().st_size * share))
    with opened(path, fresh(budget, path)) as wreck:
        rows = len(list(wreck.rows("notes", ("id", "text"))))
    assert rows % 10 == 0, "whole commits"
    assert rows >= (CUT_ROWS * share // 10 - 2) * 10


def test_the_index_of_the_log_may_be_missing(tmp_path: Path, budget: MemoryBudget) -> None:
    path = written(tmp_path / "notes.db", budget, settled=False)
    path.with_name("notes.db-shm").unlink()
    assert count(path, budget) == CUT_ROWS


def refused(*_: Any, **__: Any) -> Any:
    raise apsw.IOError("disk I/O error")


def no_room(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


def bring(wreck: Wreck, new: Database) -> None:
    rows = list(wreck.rows("notes", ("id", "text")))
    with new.write() as db:
        db.executemany("INSERT INTO notes VALUES (?, ?)", rows)


class RefusedReading:
    """A connection that refuses in the middle of a table."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql.startswith("SELECT id, text"):
            return self._some(sql, *arguments)
        return self._db.execute(sql, *arguments)

    def _some(self, sql: str, *arguments: Any) -> Any:
        yield self._db.execute(sql, *arguments).fetchone()
        refused()

    def close(self, force: bool) -> None:
        self._db.close(force)


def in_the_middle(*given: Any, connect: Callable[..., apsw.Connection] = salvage.connect, **options: Any) -> Any:
    return RefusedReading(connect(*given, **options))


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("connect", refused), ("connect", in_the_middle), ("_move_log", refused), ("_move_log", no_room),
    ],
)  # fmt: skip
def test_nothing_is_replaced_where_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: Callable[..., Any]
) -> None:
    budget = MemoryBudget(1 << 36, baseline=0)
    path = tmp_path / "notes.db"
    with Database(path, NOTES, budget=budget) as database, database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("a",), ("b",), ("c",)])
    with monkeypatch.context() as patch:
        patch.setattr(salvage, where, what)
        with pytest.raises(StorageError, match=r"notes\.db"):
            make_again(path, NOTES, bring, budget=budget, verbs="edge")
    with Database(path, NOTES, budget=budget) as database, database.read() as db:
        assert db.execute("SELECT text FROM notes").fetchall() == [("a",), ("b",), ("c",)]
    make_again(path, NOTES, bring, budget=budget, verbs="edge")
    with Database(path, NOTES, budget=budget) as database, database.read() as db:
        assert db.execute("SELECT text FROM notes").fetchall() == [("a",), ("b",), ("c",)]
