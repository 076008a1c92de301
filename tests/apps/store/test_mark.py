"""Commits that a damaged log has lost are noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

from edge.apps.store import health
from edge.apps.store.checking import CheckReport, check_file
from edge.apps.store.connections import connect, plain
from edge.apps.store.database import Database
from edge.apps.store.mark import HighWaterMark
from edge.budget import MemoryBudget
from edge.errors import StorageError

NOTES = "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL);"


def opened(folder: Path, budget: MemoryBudget, *, read_only: bool = False) -> Database:
    return Database(folder / "notes.db", [NOTES], budget=budget, read_only=read_only)


@pytest.fixture
def killed(tmp_path: Path, budget: MemoryBudget) -> Path:
    """A database as a killed process leaves it: ten commits, all in the log."""
    (tmp_path / "live").mkdir()
    writer = opened(tmp_path / "live", budget)
    for n in range(10):
        with writer.write() as db:
            db.execute("INSERT INTO notes(text) VALUES (?)", (f"note {n} " * 50,))
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    writer.close()
    return tmp_path / "killed"


def count(database: Database) -> int:
    with database.read() as db:
        return int(db.execute("SELECT count(*) FROM notes").fetchone()[0])


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x40
    path.write_bytes(data)


def test_a_whole_log_loses_nothing(killed: Path, budget: MemoryBudget) -> None:
    with opened(killed, budget) as database:
        assert count(database) == 10
        assert database.lost is None


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_damaged_log_is_noticed_until_somebody_has_noted_it(killed: Path, budget: MemoryBudget, share: float) -> None:
    flip(killed / "notes.db-wal", share)
    for _ in range(2):  # a process that only reads cannot note it
        with opened(killed, budget, read_only=True) as reader:
            left = count(reader)
            assert left < 10
            assert reader.lost is not None
            assert reader.lost.text.startswith("the last")
    with opened(killed, budget) as writer:
        assert count(writer) == left
        with writer.read() as db:
            assert [trouble.kind for trouble in health.noted(db)] == ["lost commits"]
    with opened(killed, budget) as writer:
        assert writer.lost is None
        with writer.write() as db:
            assert health.is_noted(db, "lost commits"), "it stays until it is repaired"
            health.forget(db, "lost commits")
    with opened(killed, budget, read_only=True) as reader, reader.read() as db:
        assert reader.lost is None
        assert not health.noted(db)


def test_a_log_that_is_gone_is_noticed(killed: Path, budget: MemoryBudget) -> None:
    (killed / "notes.db-wal").unlink()
    with opened(killed, budget) as database:
        assert database.lost is not None


def test_a_mark_that_is_torn_damaged_or_gone_raises_no_alarm(killed: Path, budget: MemoryBudget) -> None:
    mark = killed / "notes.db-mark"
    whole = mark.read_bytes()
    for kept in (b"", whole[:70], bytes(len(whole)), os.urandom(len(whole)), whole[:64] + os.urandom(64)):
        mark.write_bytes(kept)
        with opened(killed, budget) as database:
            assert count(database) == 10
            assert database.lost is None
        assert HighWaterMark(mark).sound()
    mark.unlink()
    with opened(killed, budget) as database:
        assert database.lost is None


def test_the_mark_of_another_database_says_nothing(killed: Path, tmp_path: Path, budget: MemoryBudget) -> None:
    (tmp_path / "other").mkdir()
    opened(tmp_path / "other", budget).close()
    shutil.copy(killed / "notes.db-mark", tmp_path / "other" / "notes.db-mark")
    with opened(tmp_path / "other", budget) as database:
        assert database.lost is None


def test_every_page_that_is_read_is_verified(tmp_path: Path, budget: MemoryBudget) -> None:
    with opened(tmp_path, budget) as database, database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [(f"note {n} " * 100,) for n in range(100)])
    path = tmp_path / "notes.db"
    whole = path.read_bytes()
    found = 0
    for page in range(len(whole) // 4096):
        data = bytearray(whole)
        data[page * 4096 + 3000] ^= 1
        path.write_bytes(data)
        said = ""
        try:
            with opened(tmp_path, budget, read_only=True) as database, database.read() as db:
                assert len(db.execute("SELECT * FROM notes").fetchall()) == 100
                db.execute("SELECT * FROM health").fetchall()
        except StorageError as error:
            said = str(error)
        found += "`edge check` says what is lost, `edge repair` mends" in said
    assert found >= len(whole) // 4096 - 1, "but for the index of `health`, all pages are read"


def test_a_database_without_checksums_gets_them(tmp_path: Path, budget: MemoryBudget) -> None:
    old = apsw.Connection(str(tmp_path / "notes.db"))
    old.execute(NOTES)
    old.execute("INSERT INTO notes(text) VALUES ('before')")
    old.execute("PRAGMA user_version = 1")
    old.close()
    with opened(tmp_path, budget) as database:
        assert count(database) == 1
    db = connect((tmp_path / "notes.db").as_uri(), writable=False, cache=1 << 20, busy_seconds=1)
    assert db.execute("PRAGMA checksum_verification").fetchall() == [("1",)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM notes; END", "trigger"),
        ("CREATE VIEW v AS SELECT load_extension('evil')", "view"),
        ("CREATE VIRTUAL TABLE x USING rtree(id, a, b)", "virtual table"),
    ],
)
def test_what_a_schema_would_run_is_refused(tmp_path: Path, budget: MemoryBudget, statement: str, what: str) -> None:
    opened(tmp_path, budget).close()
    foreign = plain(tmp_path / "notes.db")
    foreign.execute(statement)
    foreign.close()
    for read_only in (True, False):
        with pytest.raises(StorageError, match=rf"holds a {what}, .* that edge-rag does not make"):
            opened(tmp_path, budget, read_only=read_only)


@pytest.mark.parametrize("name", ["notes.db-mark", "notes.db-schema"])
def test_a_check_finds_damage_of_what_lies_beside_the_database(tmp_path: Path, budget: MemoryBudget, name: str) -> None:
    with opened(tmp_path, budget) as database:
        database.settle()
    beside = tmp_path / name
    whole = beside.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
    for data in (b"", bytes(len(whole)), whole[: len(whole) // 2], whole + b"x", *damaged):
        beside.write_bytes(data)
        report = CheckReport(tmp_path, read_data=True)
        check_file(report, tmp_path / "notes.db")
        assert not report.sound, data
        opened(tmp_path, budget).close()
        report = CheckReport(tmp_path, read_data=True)
        check_file(report, tmp_path / "notes.db")
        assert report.sound, "the next command that writes makes it anew"
